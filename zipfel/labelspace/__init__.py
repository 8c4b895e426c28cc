"""What labels have to do with each other: graphs, walks, clusters, centroids."""
