"""MNN and DXML once more, slowly and from the text of their papers: a training step, the fit, prediction.

Plain loops over lists of Python floats (64 bits), with the names of the papers. Random draws are arguments. Where the
library departs from a paper, "ours" says how. A point is a list of (feature, weight); labels are sets.
"""

from __future__ import annotations

import itertools
import math
import statistics


def rows_of(matrix):
    """The stored (column, value) pairs of each row of a sparse matrix."""
    ends = matrix.indptr
    columns, values = matrix.indices.tolist(), matrix.data.tolist()
    return [list(zip(columns[low:high], values[low:high], strict=True)) for low, high in itertools.pairwise(ends)]


def truth_of(matrix):
    return [{label for label, value in row if value} for row in rows_of(matrix)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def unit(a):
    """A vector of length 1; ours: a zero vector stays as it is."""
    length = math.sqrt(dot(a, a))
    return [x / length for x in a] if length else list(a)


# --- Gradients and optimisers: weights are lists of rows, by name -----------------------------------------------------


def slopes(loss, weights, step=1e-6):
    """The gradient of loss() by central differences in each number of the weights."""
    found = {name: [[0.0] * len(row) for row in rows] for name, rows in weights.items()}
    for name, rows in weights.items():
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                row[j] = value + step
                above = loss()
                row[j] = value - step
                found[name][i][j] = (above - loss()) / (2 * step)
                row[j] = value
    return found


def zeros(weights):
    return {name: [[0.0] * len(row) for row in rows] for name, rows in weights.items()}


def sgd_step(weights, velocity, gradient, touched, rate):
    """DXML, Sec. 4.1: momentum 0.9, weight decay 0.0005. Ours: rows of a table that no point has stay as they are.

    touched: by name of a table, the rows that the points of the batch have; other weights move as a whole.
    """
    for name, rows in weights.items():
        for i in touched.get(name, range(len(rows))):
            for j in range(len(rows[i])):
                velocity[name][i][j] = 0.9 * velocity[name][i][j] + gradient[name][i][j] + 0.0005 * rows[i][j]
                rows[i][j] -= rate * velocity[name][i][j]


def adam_step(weights, moments, gradient, touched, rate, step):
    """Adam, with steps counted from 1. Ours: rows of a table that no point has, and their moments, stay."""
    first, second = moments
    for name, rows in weights.items():
        for i in touched.get(name, range(len(rows))):
            for j in range(len(rows[i])):
                g = gradient[name][i][j]
                first[name][i][j] = 0.9 * first[name][i][j] + 0.1 * g
                second[name][i][j] = 0.999 * second[name][i][j] + 0.001 * g * g
                mean, square = first[name][i][j] / (1 - 0.9**step), second[name][i][j] / (1 - 0.999**step)
                rows[i][j] -= rate * mean / (math.sqrt(square) + 1e-8)


def rising_and_falling(highest, step, steps):
    """Ours: the learning rate of a step, counted from 1: linear up to a tenth of the way, then linear down to 0."""
    done = step / (steps + 1)
    return highest * (done / 0.1 if done < 0.1 else (1 - done) / 0.9)


# --- MNN --------------------------------------------------------------------------------------------------------------


def mnn_f_y(W_e, labels):
    """Eq. (1), (3): the average of the embeddings of T labels."""
    return [sum(W_e[label][d] for label in labels) / len(labels) for d in range(len(W_e[0]))]


def mnn_f_x(W_e, point, r):
    """Eq. (6), (7), and with r = 1 Eq. (2), (4). Ours: 0 if ‖r‖₁ = 0."""
    z = [0.0] * len(W_e[0])
    for (k, w_k), r_k in zip(point, r, strict=True):
        for d in range(len(z)):
            z[d] += W_e[k][d] * r_k * w_k
    return [value / sum(r) for value in z] if sum(r) else z


def mnn_cosine(f_x, f_y):
    """Eq. (8). Ours: 0 if one of them is 0."""
    lengths = math.sqrt(dot(f_x, f_x)) * math.sqrt(dot(f_y, f_y))
    return dot(f_x, f_y) / lengths if lengths else 0.0


def mnn_loss(weights, batch, m, reduction="max"):
    """Eq. (9)-(11). Ours: divided by the number of points; without negatives, only Eq. (9).

    reduction: Sec. 3.3 takes the maximum over negatives "instead of taking the sum or the mean of them".

    batch: for each point its features, r, its labels, and the label sets of its h negatives.
    """
    total = 0.0
    for point, r, y, negatives in batch:
        f_x = mnn_f_x(weights["W_x"], point, r)
        total += 0.25 * (1 - mnn_cosine(f_x, mnn_f_y(weights["W_y"], y))) ** 2
        hardest = added = 0.0
        for other in negatives:
            c = mnn_cosine(f_x, mnn_f_y(weights["W_y"], other))
            hardest = max(hardest, c**2 if c > m else 0.0)
            added += c**2 if c > m else 0.0
        if reduction == "max":
            total += hardest
        elif negatives:
            total += added / (len(negatives) if reduction == "mean" else 1)
    return total / len(batch)


# --- DXML -------------------------------------------------------------------------------------------------------------


def dxml_neighbours(truth, labels, weighted=False):
    """Sec. 3.2: labels that ever co-exist in a sample. Returns (neighbour, weight) of each label.

    weighted, ours: the number of shared samples; else 1.
    """
    graph = [{} for _ in range(labels)]
    for right in truth:
        for a in right:
            for b in right:
                if a != b:
                    graph[a][b] = graph[a].get(b, 0) + 1 if weighted else 1
    return [sorted(row.items()) for row in graph]


def dxml_walks(graph, count, length, numbers):
    """DeepWalk: `count` passes, each with a walk from every label in random order; a step goes to a random neighbour.

    numbers: a generator, drawn from in the library's order: a permutation, then a number for each walk of a position.
    """
    starts, walks = [label for label, row in enumerate(graph) if row], []
    for _ in range(count):
        these = [[start] for start in numbers.permutation(starts).tolist()]
        for _ in range(length - 1):
            for walk, draw in zip(these, numbers.random(len(these)).tolist(), strict=True):
                walk.append(step_of(graph[walk[-1]], draw))
        walks += these
    return walks


def step_of(neighbours, draw):
    """The neighbour at a share `draw` of the summed weights."""
    left = draw * sum(weight for _, weight in neighbours)
    for label, weight in neighbours:
        left -= weight
        if left < 0:
            return label
    return neighbours[-1][0]


def whitened(V):
    """Ours: centred, multiplied by C^(−1/2) of their scatter matrix C, then of length 1; by Newton's iteration."""
    size = range(len(V[0]))
    means = [sum(row[d] for row in V) / len(V) for d in size]
    centred = [[x - mean for x, mean in zip(row, means, strict=True)] for row in V]
    C = [[sum(row[i] * row[j] for row in centred) for j in size] for i in size]
    scale = sum(C[i][i] for i in size)
    Y = [[x / scale for x in row] for row in C]
    Z = [[float(i == j) for j in size] for i in size]
    for _ in range(60):  # Y → (C / scale)^(1/2), Z → (C / scale)^(−1/2)
        T = [[(3.0 * (i == j) - x) / 2 for j, x in enumerate(row)] for i, row in enumerate(product(Z, Y))]
        Y, Z = product(Y, T), product(T, Z)
    return [unit(row) for row in product(centred, Z)]


def product(A, B):
    columns = list(zip(*B, strict=True))
    return [[dot(row, column) for column in columns] for row in A]


def dxml_f_y(V, labels):
    """Algorithm 1, line 3: V y / nnz(y)."""
    return [sum(V[label][d] for label in labels) / len(labels) for d in range(len(V[0]))]


def dxml_f_x(weights, point, nonlinear=True, dropped=None):
    """Sec. 4.1: FC, ReLU, FC, dropout, ℓ2 normalisation.

    weights: W_1 [d, hidden], b_1, W_2 [hidden, ℓ], b_2; ours: `path` [d, ℓ], a linear path beside the two layers.
    dropped: by output, whether dropout drops it; the others are doubled at a rate of ½, which ℓ2 undoes.
    """
    hidden = list(weights["b_1"][0])
    for k, w_k in point:
        for j in range(len(hidden)):
            hidden[j] += w_k * weights["W_1"][k][j]
    if nonlinear:
        hidden = [max(0.0, value) for value in hidden]
    out = list(weights["b_2"][0])
    for d in range(len(out)):
        for j, value in enumerate(hidden):
            out[d] += value * weights["W_2"][j][d]
        for k, w_k in point if "path" in weights else []:
            out[d] += w_k * weights["path"][k][d]
    if dropped is not None:
        out = [0.0 if gone else value for value, gone in zip(out, dropped, strict=True)]
    return unit(out)


def dxml_new_vector(V, neighbours):
    """Ours, for incremental learning: the mean vector of a new label's neighbours, with the median length of V.

    neighbours: (known label, weight) of the new label. None where it has none: a random direction.
    """
    weights = sum(weight for _, weight in neighbours)
    if not weights:
        return None
    mean = [sum(weight * V[label][d] for label, weight in neighbours) / weights for d in range(len(V[0]))]
    length = statistics.median(math.sqrt(dot(row, row)) for row in V)
    return [length * x for x in unit(mean)]


def dxml_h(a, b):
    """Eq. (2)."""
    return 0.5 * (a - b) ** 2 if abs(a - b) <= 1 else abs(a - b) - 0.5


def dxml_loss(weights, batch, nonlinear=True, summed=False):
    """Eq. (1), (3). Ours, unless summed: divided by the number of points.

    batch: for each point its features (ours: without dropped ones), which outputs are dropped, and f_y.
    """
    total = 0.0
    for point, dropped, f_y in batch:
        f_x = dxml_f_x(weights, point, nonlinear, dropped)
        for a, b in zip(f_x, f_y, strict=True):
            total += dxml_h(a, b)
    return total if summed else total / len(batch)


def nearest_centre(f_x, centres):
    """Eq. (4)."""
    return min(range(len(centres)), key=lambda i: distance(f_x, centres[i]))


def means_of_clusters(points, clusters, count):
    """The centre of each cluster: the mean of its points."""
    members = [[point for point, cluster in zip(points, clusters, strict=True) if cluster == i] for i in range(count)]
    return [[statistics.fmean(column) for column in zip(*own, strict=True)] for own in members]


def dxml_tags(f_x, centres, points, truth, k):
    """Algorithm 2: the share of each label among the k nearest points of the nearest cluster, by label."""
    clusters = [nearest_centre(point, centres) for point in points]
    own = nearest_centre(f_x, centres)
    Z = [i for i in range(len(points)) if clusters[i] == own]
    K = sorted(Z, key=lambda i: distance(f_x, points[i]))[:k]
    P = {}
    for i in K:
        for label in truth[i]:
            P[label] = P.get(label, 0.0) + 1 / len(K)
    return P
