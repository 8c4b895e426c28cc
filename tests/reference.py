"""Every formula a second time, slowly: plain loops over lists, to hold the library's vectorised ones against.

A ranking is a list of rows of label ids, best first, -1 for none; truth is a list of sets of label ids.
"""

from __future__ import annotations

import itertools
import math
import unicodedata


def inverse_propensity(count, points, A, B):
    C = (math.log(points) - 1) * (B + 1) ** A
    return 1 + C / (count + B) ** A


def top(row, k):
    return [label for label in row[:k] if label != -1]


def precision(ranking, truth, k):
    total = 0.0
    for row, right in zip(ranking, truth, strict=True):
        total += len([label for label in top(row, k) if label in right]) / k
    return total / len(truth)


def recall(ranking, truth, k):
    total = 0.0
    for row, right in zip(ranking, truth, strict=True):
        if right:
            total += len([label for label in top(row, k) if label in right]) / len(right)
    return total / len(truth)


def ndcg(ranking, truth, k):
    total = 0.0
    for row, right in zip(ranking, truth, strict=True):
        if right:
            dcg = sum(1 / math.log2(place + 2) for place, label in enumerate(row[:k]) if label in right)
            total += dcg / sum(1 / math.log2(place + 2) for place in range(min(k, len(right))))
    return total / len(truth)


def coverage(ranking, truth, k):
    occurring = set().union(*truth)
    covered = {label for row, right in zip(ranking, truth, strict=True) for label in top(row, k) if label in right}
    return len(covered) / len(occurring) if occurring else 0.0


def propensity_scored(ranking, truth, weights, k, metric):
    """Σ over points of the gain, divided by Σ of the largest possible gain; metric: PSP, PSnDCG or PSR."""
    gained = possible = 0.0
    for row, right in zip(ranking, truth, strict=True):
        gains = [weights[label] if label in right else 0.0 for label in row[:k]]
        best = sorted((weights[label] for label in right), reverse=True)[:k]
        if right:
            gained += worth(gains, len(right), k, metric)
            possible += worth(best, len(right), k, metric)
    return gained / possible if possible else 0.0


def worth(gains, positives, k, metric):
    if metric == "PSP":
        return sum(gains) / k
    if metric == "PSR":
        return sum(gains) / positives
    dcg = sum(gain / math.log2(place + 2) for place, gain in enumerate(gains))
    return dcg / sum(1 / math.log2(place + 2) for place in range(min(k, positives)))


def measure(ranking, truth, weights, ks):
    values = {}
    for k in ks:
        values[f"P@{k}"] = 100 * precision(ranking, truth, k)
        values[f"nDCG@{k}"] = 100 * ndcg(ranking, truth, k)
        values[f"R@{k}"] = 100 * recall(ranking, truth, k)
        values[f"coverage@{k}"] = 100 * coverage(ranking, truth, k)
        for metric in ("PSP", "PSnDCG", "PSR"):
            values[f"{metric}@{k}"] = 100 * propensity_scored(ranking, truth, weights, k, metric)
    return values


def macro(ranking, truth, ks):
    values = {}
    occurring = sorted(set().union(*truth))
    for k in ks:
        p = r = f = 0.0
        for label in occurring:
            predicted = {i for i, row in enumerate(ranking) if label in top(row, k)}
            positive = {i for i, right in enumerate(truth) if label in right}
            hits = len(predicted & positive)
            p += hits / len(predicted) if predicted else 0.0
            r += hits / len(positive)
            f += 2 * hits / (len(predicted) + len(positive))
        n = max(1, len(occurring))
        values |= {f"macroP@{k}": 100 * p / n, f"macroR@{k}": 100 * r / n, f"macroF1@{k}": 100 * f / n}
    return values


def frequency_bins(counts, bins):
    """Fill bins from the most frequent label down, and move on once a bin's share of all occurrences is used up."""
    owner, total, used = [0] * len(counts), sum(counts), 0
    for label in sorted(range(len(counts)), key=lambda label: (-counts[label], -label)):
        owner[label] = bins - 1
        for b in range(1, bins):
            if used * bins >= b * total:
                owner[label] = bins - 1 - b
        used += counts[label]
    return owner


def contributions(ranking, truth, counts, k, bins):
    owner, sums = frequency_bins(counts, bins), [0.0] * bins
    for row, right in zip(ranking, truth, strict=True):
        for label in top(row, k):
            if label in right:
                sums[owner[label]] += 100 / (k * len(truth))
    return sums


def only_tail(truth, counts):
    mean = sum(counts) / len(counts)
    return [len(right) > 0 and all(counts[label] < mean for label in right) for right in truth]


# Tokens: the rules of docs/decisions/004-tokens.md, character by character.

UNSPACED = [  # Thai and Lao, Myanmar, Khmer, ideographic marks, kana, Han
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3040, 0x30FF), (0x3400, 0x9FFF),
    (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
]  # fmt: skip
SELECTORS = [(0x034F, 0x034F), (0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF)]
ACCENTS = [(0x0300, 0x036F), (0x3099, 0x309A)]


def within(character, ranges):
    return any(first <= ord(character) <= last for first, last in ranges)


def tokens(text, symbols=False):
    words = [""]
    for character in folded(text):
        kind = unicodedata.category(character)
        if character == "\u200b":
            words.append("")
        elif kind == "Cf" or within(character, SELECTORS):
            continue
        elif kind[0] in "LMN":
            words[-1] += character
        elif symbols and (kind[0] == "S" or character in "#%&@"):
            words += [character, ""]
        else:
            words.append("")
    return [token for word in words for token in pieces(word)]


def folded(text):
    """Normalise case, width and the encoding of accents; a lone accent is dropped."""
    kept, after_blank = "", False
    for character in unicodedata.normalize("NFKC", text):
        if not (after_blank and within(character, ACCENTS)):
            kept, after_blank = kept + character, character == " "
    return unicodedata.normalize("NFKC", kept.casefold())


def pieces(word):
    """A word itself; where it is of a script without blanks, pairs of letters, each with the marks that follow it."""
    found, start = [], 0
    while start < len(word):
        end = start + 1
        while end < len(word) and within(word[end], UNSPACED) == within(word[start], UNSPACED):
            end += 1
        run, letters = word[start:end], []
        for character in run if within(word[start], UNSPACED) else "":
            if unicodedata.category(character)[0] != "M":
                letters.append(character)
            elif letters:
                letters[-1] += character
        found += [first + second for first, second in itertools.pairwise(letters)] or [run]
        start = end
    return found


# Losses, regularizers, the label graph, negatives (GLaS, MNN, DXML).
# Vectors and matrices are lists of floats; a mask is a list of lists of booleans, False leaves a pair out.


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def margin_loss(positive, negatives, c, mask):
    total = 0.0
    for h, row, kept in zip(positive, negatives, mask, strict=True):
        for other, keep in zip(row, kept, strict=True):
            if keep:
                total += max(0.0, other - h + c)
    return total / len(positive)


def softmax_loss(positive, negatives, mask):
    total = 0.0
    for h, row, kept in zip(positive, negatives, mask, strict=True):
        others = [other for other, keep in zip(row, kept, strict=True) if keep]
        total -= math.log(math.exp(h) / sum(math.exp(score) for score in [h, *others]))
    return total / len(positive)


def decoupled_loss(scores, targets, mask):
    """Mean over points of 1/|P| Σ_{l∈P} ln(1 + Σ_{j∉P} exp(s_j − s_l))."""
    total = 0.0
    for row, wanted, counts in zip(scores, targets, mask, strict=True):
        right = [s for s, y, c in zip(row, wanted, counts, strict=True) if c and y]
        wrong = [s for s, y, c in zip(row, wanted, counts, strict=True) if c and not y]
        total += sum(math.log1p(sum(math.exp(j - s) for j in wrong)) for s in right) / max(1, len(right))
    return total / len(scores)


def logistic_loss(scores, targets, mask):
    total = 0.0
    for row, right, kept in zip(scores, targets, mask, strict=True):
        for score, target, keep in zip(row, right, kept, strict=True):
            if keep:
                p = 1 / (1 + math.exp(-score))
                total -= math.log(p) if target else math.log(1 - p)
    return total / len(scores)


def matching_loss(positive, negatives, m, mask, reduction="max"):
    """MNN, Eq. (9)-(11): the mean over points of L+ and the largest L- of their negatives, 0 where there are none.

    reduction: "max", or "mean" or "sum" of the L- instead.
    """
    total = 0.0
    for c, row, kept in zip(positive, negatives, mask, strict=True):
        against = [other**2 if other > m else 0.0 for other, keep in zip(row, kept, strict=True) if keep]
        total += 0.25 * (1 - c) ** 2
        if against:
            total += {"max": max(against), "sum": sum(against), "mean": sum(against) / len(against)}[reduction]
    return total / len(positive)


def smooth_l1_loss(found, wanted):
    """DXML, Eq. (1)-(3): summed over dimensions, the mean over points."""
    total = 0.0
    for f_x, f_y in zip(found, wanted, strict=True):
        for a, b in zip(f_x, f_y, strict=True):
            total += 0.5 * (a - b) ** 2 if abs(a - b) <= 1 else abs(a - b) - 0.5
    return total / len(found)


def log_distance(points, labels, owned):
    """LightDXML, Eq. (2). owned: for each point, which labels are its own."""
    total = 0.0
    for x, own in zip(points, owned, strict=True):
        for label in own:
            total += math.log(1 + sum((a - b) ** 2 for a, b in zip(x, labels[label], strict=True)))
    return total / len(points)


def centroids(points, truth, labels):
    """LightDXML, Eq. (5); 0 where a label has no point."""
    rows = []
    for label in range(labels):
        own = [x for x, right in zip(points, truth, strict=True) if label in right]
        rows.append([sum(column) / len(own) for column in zip(*own, strict=True)] if own else [0.0] * len(points[0]))
    return rows


def shortlisted_loss(scores, truth, shortlists, left_out):
    """LightDXML, Eq. (3), (7), (8), the mean over points. scores: [B, L] of all labels; the rest are lists of sets."""
    total = 0.0
    for row, right, near, out in zip(scores, truth, shortlists, left_out, strict=True):
        for label in (set(right) | set(near)) - set(out):
            p = 1 / (1 + math.exp(-row[label]))
            total -= math.log(p) if label in right else math.log(1 - p)
    return total / len(scores)


def cosine(a, b):
    lengths = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / lengths if lengths else 0.0


def glas_regularizer(V, U):
    return sum((dot(v, w) - U[i][j]) ** 2 for i, v in enumerate(V) for j, w in enumerate(V)) / len(V) ** 2


def spread_out_regularizer(V):
    return sum(dot(v, w) ** 2 for v in V for w in V) / len(V) ** 2


def laplacian_regularizer(V, U):
    total = 0.0
    for i, v in enumerate(V):
        for j, w in enumerate(V):
            total += U[i][j] * sum((x - y) ** 2 for x, y in zip(v, w, strict=True))
    return total / len(V) ** 2


def gravity_regularizer(X, V):
    return sum(dot(x, v) ** 2 for x in X for v in V) / (len(X) * len(V))


def shared_points(truth, a, b):
    return sum(a in right and b in right for right in truth)


def adjacency(truth, labels, kind):
    """U for a list of labels, from the points of the whole set; 1 of a label with itself."""
    U = [[1.0] * len(labels) for _ in labels]
    for i, a in enumerate(labels):
        for j, b in enumerate(labels):
            if a != b:
                U[i][j] = adjacency_of_two(truth, a, b, kind)
    return U


def adjacency_of_two(truth, a, b, kind):
    """How close two labels are: 0 where they share no point."""
    both, ours, theirs = shared_points(truth, a, b), shared_points(truth, a, a), shared_points(truth, b, b)
    if not both:
        return 0.0
    if kind == "arithmetic":
        return (both / ours + both / theirs) / 2
    if kind == "geometric":
        return math.sqrt((both / ours) * (both / theirs))
    if kind == "jaccard":
        return both / sum(a in right or b in right for right in truth)
    if both == len(truth):
        return 0.0  # every point has both: nothing is told apart
    p_both, p_ours, p_theirs = both / len(truth), ours / len(truth), theirs / len(truth)
    return max(0.0, math.log(p_both / (p_ours * p_theirs))) / -math.log(p_both)


def label_graph(truth, labels, weighted):
    """1 where two labels ever share a point, or how many they share; nothing of a label with itself."""
    graph = [[0] * labels for _ in range(labels)]
    for right in truth:
        for a, b in itertools.permutations(right, 2):
            graph[a][b] = graph[a][b] + 1 if weighted else 1
    return graph


def bag_sums(table, bags, width):
    """bags: a list of lists of (id, weight)."""
    sums = [[0.0] * width for _ in bags]
    for row, bag in zip(sums, bags, strict=True):
        for number, weight in bag:
            for d in range(width):
                row[d] += weight * table[number][d]
    return sums


def averages(table, bags, kept, width):
    """MNN, Eq. (2), (6): Σ e_k r_k w_k / ‖r‖₁; 0 where nothing is kept. kept: r, a list of 0 and 1 for each bag."""
    rows = []
    for bag, r in zip(bags, kept, strict=True):
        row = [0.0] * width
        for (number, weight), keep in zip(bag, r, strict=True):
            for d in range(width):
                row[d] += table[number][d] * keep * weight / sum(r) if keep else 0.0
        rows.append(row)
    return rows


def means_of_labels(truth, V):
    """DXML, Algorithm 1, line 3; 0 where a point has no label."""
    rows = []
    for right in truth:
        rows.append([sum(V[label][d] for label in right) / max(1, len(right)) for d in range(len(V[0]))])
    return rows


def hardest_negatives(scores, left_out, count):
    """The best scores of each row, without those left out; fewer than `count` where there are no more."""
    rows = []
    for row, out in zip(scores, left_out, strict=True):
        rows.append(sorted((s for s, gone in zip(row, out, strict=True) if not gone), reverse=True)[:count])
    return rows


# The vote of the nearest points (MNN, DXML).


def vote(query, points, truth, labels, neighbours, sharpness, found=None):
    """Labels best first, as (label, score): shares of the vote, then labels without one by frequency, with score None.

    found: the points that an index returned, -1 for none; None means all points.
    """
    places = [place for place in (range(len(points)) if found is None else found) if place >= 0]
    nearest = sorted(places, key=lambda place: (-dot(query, points[place]), place))[:neighbours]
    weights = {place: max(dot(query, points[place]), 0.0) for place in nearest}
    weights = {place: weight**sharpness for place, weight in weights.items() if weight > 0}
    shares = {}
    for place, weight in weights.items():
        for label in truth[place]:
            shares[label] = shares.get(label, 0.0) + weight / sum(weights.values())
    voted = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    counts = [sum(label in right for right in truth) for label in range(labels)]
    rest = sorted((label for label in range(labels) if label not in shares), key=lambda label: (-counts[label], label))
    return [*voted, *((label, None) for label in rest)]


# DECAF: text blocks, classifiers, shortlists by clusters, ensembles.


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def combination(alpha, a, beta, b):
    """DECAF, Fig. 2: σ(α) ⊙ a + σ(β) ⊙ b."""
    return [sigmoid(s) * x + sigmoid(t) * y for s, x, t, y in zip(alpha, a, beta, b, strict=True)]


def text_block(sums, R, alpha, beta):
    """DECAF, Sec. 3: σ(α) ⊙ r̂ + σ(β) ⊙ (R · ReLU(r̂)) of sums of tokens r̂."""
    return [combination(alpha, row, beta, [dot(line, [max(x, 0.0) for x in row]) for line in R]) for row in sums]


def all_labels_loss(points, W, offset, owned, left_out):
    """DECAF, Sec. 3.1: the mean over points of Σ_l ln(1 + exp(-y_l (w_l · x + offset))), but for labels left out."""
    total = 0.0
    for x, own, out in zip(points, owned, left_out, strict=True):
        for label, w in enumerate(W):
            if label not in out:
                total += math.log(1 + math.exp((-1 if label in own else 1) * (dot(w, x) + offset)))
    return total / len(points) if points else 0.0


def beam(query, heads, clusters, width):
    """DECAF, Sec. 3: the labels of the `width` clusters that score best, of equal ones the lower; by cluster."""
    scores = [dot(query, head) for head in heads]
    opened = sorted(range(len(heads)), key=lambda m: (-scores[m], m))[:width]
    return {m: ([label for label, owner in enumerate(clusters) if owner == m], scores[m]) for m in opened}


def tree(query, nodes, leaves, width):
    """Parabel: the labels of the `width` leaves that a beam search reaches, by leaf, with Σ ln σ(w · x + b) to there.

    nodes: (w, b) of all but the root, level by level.  leaves: of each label.
    """
    depth = (len(nodes) // 2 + 1).bit_length() - 1
    reached = {(): 0.0}  # by the way to a node: 0 for the first child, 1 for the second
    for _ in range(depth):
        further = {}
        for way, score in reached.items():
            for turn in (0, 1):
                place = int("".join(map(str, (*way, turn))), 2)  # among the nodes of its level
                *w, b = nodes[2 ** (len(way) + 1) - 2 + place]
                further[*way, turn] = score + math.log(sigmoid(dot(query, w) + b))
        reached = dict(sorted(further.items(), key=lambda pair: (-pair[1], pair[0]))[:width])
    found = {int("0" + "".join(map(str, way)), 2): score for way, score in reached.items()}
    return {leaf: ([label for label, own in enumerate(leaves) if own == leaf], found[leaf]) for leaf in found}


def averaged(rankings, k):
    """Rank by the mean of scores, 0 where a label is not ranked; rankings: lists of rows of (label, score)."""
    rows = []
    for learners in zip(*rankings, strict=True):
        sums = {}
        for row in learners:
            for label, score in row:
                sums[label] = sums.get(label, 0.0) + score
        means = {label: total / len(rankings) for label, total in sums.items()}
        rows.append(sorted(means.items(), key=lambda pair: (-pair[1], pair[0]))[:k])
    return rows


# --- Linear classifiers and their blend with another model ------------------------------------------------------------


def linear_objective(w, b, rows, sides, C, loss, counts=None, centre=None):
    """½ ‖(w, b) − centre‖² + C Σ_i c_i loss(y_i (w · x_i + b)); c_i is 1 unless given."""
    held = [0.0] * (len(w) + 1) if centre is None else centre
    total = sum((value - was) ** 2 for value, was in zip([*w, b], held, strict=True)) / 2
    for i, (row, side) in enumerate(zip(rows, sides, strict=True)):
        margin = side * (dot(w, row) + b)
        lost = max(0.0, 1 - margin) ** 2 if loss == "squared_hinge" else math.log1p(math.exp(-margin))
        total += C * (1 if counts is None else counts[i]) * lost
    return total


def highest(scores, count):
    """The labels with the highest scores of a point, as a set."""
    return set(sorted(range(len(scores)), key=lambda label: -scores[label])[:count])


def sign(point, label, truth, negatives, excluded):
    """1 for a label of a point, −1 for a negative, 0 for others and for excluded pairs."""
    if label in excluded[point]:
        return 0
    if label in truth[point]:
        return 1
    return -1 if label in negatives[point] else 0


def knot_weight(count, knots, values):
    """w of a label with `count` points: between knots linear in ln n, beyond them constant."""
    if count <= knots[0]:
        return values[0]
    for (low, at_low), (high, at_high) in itertools.pairwise(zip(knots, values, strict=True)):
        if count <= high:
            share = (math.log(count) - math.log(low)) / (math.log(high) - math.log(low))
            return (1 - share) * at_low + share * at_high
    return values[-1]


def blended_candidates(main: dict[int, float], margins: list[float], sure: float) -> list[tuple[int, float, float]]:
    """Return (label, bounded log-odds of the main part, margin + 1 of the linear part or 0) of each candidate."""
    candidates = []
    for label in sorted(main):
        odds = math.log(main[label] / (1 - main[label]))
        candidates.append((label, sure * math.tanh(odds / sure), max(margins[label] + 1, 0.0)))
    return candidates


def blend_loss(points, a, weights, tail, inverse, truth):
    """− Σ_i Σ_{l ∈ Y_i} u_l / min(|Y_i|, 5) ln(e^{s_l} / (e^{s_l} + Σ_{j ∉ Y_i} e^{s_j})), a mean over labelled points.

    points: candidates (label, main, linear) of each point.  weights: w of each label.  u_l = 1 − tail + tail / p_l,
    with 1 / p_l divided by its mean over the right candidates.
    """
    right = [label for listed, own in zip(points, truth, strict=True) for label, _, _ in listed if label in own]
    mean = sum(inverse[label] for label in right) / len(right)
    total = 0.0
    for listed, own in zip(points, truth, strict=True):
        scores = {label: a * main + weights[label] * linear for label, main, linear in listed}
        wrong = sum(math.exp(score) for label, score in scores.items() if label not in own)
        for label in own & set(scores):
            u = 1 - tail + tail * inverse[label] / mean
            chance = math.exp(scores[label]) / (math.exp(scores[label]) + wrong)
            total -= u / min(len(own), 5) * math.log(chance)
    return total / sum(1 for own in truth if own)
