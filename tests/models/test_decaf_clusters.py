"""Labels of clusters are made of labels of points, which stay as they are."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from zipfel.models.shortlisters import labels_to_clusters


def test_clusters_of_points_by_hand_and_the_labels_are_not_touched():
    Y = csr_array(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], dtype=np.float32))
    before = Y.toarray()
    assert labels_to_clusters(Y, np.array([0, 0, 1, 1]), 2).toarray().tolist() == [[1, 0], [1, 1], [0, 1]]
    assert np.array_equal(Y.toarray(), before)
