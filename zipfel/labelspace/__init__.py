"""How labels relate to each other: graphs, random walks, clusters, centroids."""
