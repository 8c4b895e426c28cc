"""What DECAF's learners are made of: text blocks, classifiers, clusters' classifiers, and their prediction (Sec. 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.index import Index, build_index
from zipfel.index.beam import BeamIndex, NearIndex
from zipfel.index.exact import SPARE, ExactIndex, products, row_products
from zipfel.index.tree import TreeIndex
from zipfel.models.base import BATCH, Learner, at_most, known, listed, ndcg, with_others
from zipfel.nn.classifiers import Combination
from zipfel.nn.encoders import Ready, Table, TextBlock, dropped, keep_features
from zipfel.types import Bags, Ranking, Shortlist

if TYPE_CHECKING:  # which imports this
    from zipfel.models.decaf import DecafSettings

Shortlister = BeamIndex | NearIndex  # has `open`, `labels` of what it opens, and `search`, which is both

FIFTH, CAUTION = 5, 0.25  # chosen on validation of LF-PubMedMeSH: docs/papers/decaf.md
POWERS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08)  # of n̄ / n_l, that are tried
SPARED = 0.0005  # of nDCG@5, which the tail may cost: chosen on validation, docs/papers/decaf.md
FEW, MANY = 800, 10_000  # points that are held out: fewer tell too little of powers, more tell nothing new
SCALE = 2.5  # times ln n: what cosines with n classifiers are multiplied by at the start


class Network(nn.Module):
    """One learner: token vectors E, text blocks E_D and E_L, refinement vectors ẑ², their combination C_L; and S.

    finder: the encoder that S has learned with, Module II's, where there is a shortlist.  graph: of HNSW.
    """

    vectors: Tensor  # w of all labels, [L, D], once they are composed
    heads: Tensor  # h of all clusters, [K, D], nodes of a tree, or vectors of labels for HNSW; none without a shortlist
    clusters: Tensor  # of each label, [L], or leaves
    power: Tensor  # γ of `lift_rare`

    def __init__(self, features: int, labels: int, settings: DecafSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.settings, D = settings, settings.dimension
        self.tokens = Table(features, D, generator, scale=settings.spread)
        self.documents, self.labels = TextBlock(D), TextBlock(D)
        self.refinement = Table(labels, D, generator, scale=settings.spread)
        self.combination = Combination(D)
        start = SCALE * math.log(max(labels, 2)) if settings.cosine else 1.0
        self.scale = nn.Parameter(torch.tensor(start), requires_grad=settings.cosine)
        self.offset = nn.Parameter(torch.tensor(-start / 3 if settings.cosine else 0.0), requires_grad=settings.cosine)
        for name, size in (("vectors", (labels, D)), ("heads", (0, D))):
            self.register_buffer(name, torch.zeros(size))
        self.register_buffer("clusters", torch.zeros(labels, dtype=torch.int32))
        self.register_buffer("power", torch.zeros(()))
        self.beam = 0
        self.finder: Finder | None = None
        self.graph: Index | None = None

    # --- Document and label-text embedding, and classifiers ----------------------------------------------------------

    def encode(self, points: Bags, drop: float, generator: torch.Generator) -> Tensor:
        """Return x̂ = ReLU(E_D(x)), [B, D], with dropout; with `cosine`, of length 1."""
        settings, sums = self.settings, self.tokens(keep_features(points, self.settings.keep, generator))
        found = self.documents(sums, drop, generator) if settings.residual else sums
        found = dropped(F.relu(found), drop, generator) if settings.relu else found
        return F.normalize(found, dim=1) if settings.cosine else found

    def label_texts(self, texts: Bags, drop: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """Return ẑ¹ = E_L(z) of texts, [S, D]."""
        sums: Tensor = self.tokens(texts)
        return self.labels(sums, drop, generator) if self.settings.residual else sums

    def classifiers(
        self, labels: Tensor | None, texts: Bags | None, drop: float = 0.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return w_l = σ(α_L) ⊙ ẑ¹_l + σ(β_L) ⊙ ẑ²_l of labels [S], or all, with their texts, [S, D]."""
        text = self.label_texts(texts, drop, generator) if texts is not None else None
        refined = self.refinement.gather(labels) if self.settings.refinement or text is None else None
        return self.scaled(self.combination(text, refined))

    def cold_classifiers(self, texts: Bags) -> Tensor:
        """Return w of labels of which only texts are known, [S, D]: ẑ¹ = E_L(z), ẑ² = E z."""
        text = self.label_texts(texts) if self.settings.label_text else None
        refined = self.tokens(texts) if self.settings.refinement or text is None else None
        return self.scaled(self.combination(text, refined))

    def scaled(self, W: Tensor) -> Tensor:
        """Return classifiers [S, D] that a product with x̂ turns into scores."""
        return W * (self.scale / W.norm(dim=1, keepdim=True).clamp_min(1e-12)) if self.settings.cosine else W

    # --- Prediction --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def compose(self, Z: csr_array | None) -> None:
        """Work out the classifiers of all labels."""
        self.eval()
        device, starts = self.vectors.device, range(0, len(self.vectors), BATCH)
        for start in starts:
            labels = torch.arange(start, min(start + BATCH, len(self.vectors)), device=device)
            texts = None if Z is None else bags(Z[start : start + BATCH]).to(device)
            self.vectors[labels] = self.classifiers(labels, texts)

    @torch.no_grad()
    def lift_rare(self, counts: Tensor, held_out: Part | None) -> None:
        """Make composed classifiers of rare labels longer, and of frequent ones shorter: w_l (n̄ / n_l)^γ.

        γ is the largest with which points that are held out are ranked as well as with the best; where they are few,
        it stays as it was, and so it does after Ctrl-C.  counts: points of each label, [L].
        """
        W, logs = self.vectors, rarity(counts).to(self.vectors)[:, None]

        def goodness(power: float, part: Part) -> float:
            self.vectors = W * torch.exp(power * logs)
            return ndcg(self.learner(counts, len(counts)), part)

        try:
            if held_out is not None and len(held_out) >= FEW:
                some = at_most(held_out, MANY)
                self.power.fill_(largest_power({power: goodness(power, some) for power in POWERS}))
        finally:
            self.vectors = W * torch.exp(self.power * logs)

    def ready(self) -> Ready:
        """Return what encodes points for prediction."""
        return self._ready(self.tokens, self.documents)

    def seeking(self) -> Ready:
        """Return what encodes points for S."""
        return self.ready() if self.finder is None else self._ready(self.finder.tokens, self.finder.documents)

    def _ready(self, tokens: Table, block: TextBlock) -> Ready:
        settings = self.settings
        return Ready(tokens, block if settings.residual else None, settings.cosine, settings.relu)

    def shortlister(self, learned: int | None = None) -> Shortlister | None:
        """Return what finds (so many of) the labels; None where all are looked at."""
        if not len(self.heads):
            return None
        hnsw = self.settings.shortlist == "hnsw"
        return NearIndex(self.neighbours(learned), self.beam) if hnsw else self.by_clusters(learned)

    def by_clusters(self, learned: int | None = None) -> BeamIndex:
        """Return what finds (so many) labels by their clusters, or the leaves of a tree."""
        kind = TreeIndex if self.settings.shortlist == "parabel" else BeamIndex
        return kind(self.heads, self.clusters[:learned], self.beam)

    def neighbours(self, learned: int | None = None) -> Index:
        """Return HNSW over vectors of (so many) labels, or what takes its place; those learned since join it."""
        heads = self.heads[:learned]
        if self.graph is None:
            self.graph = build_index("hnsw", heads)
        elif len(self.graph) < len(heads):
            self.graph.add(heads[len(self.graph) :])
        return ExactIndex(heads) if isinstance(self.graph, ExactIndex) else self.graph  # which may have been moved

    def learner(self, counts: Tensor, learned: int) -> Learner:
        """Return what prediction needs; labels behind the first `learned` are known by their texts alone."""
        device, index = self.vectors.device, self.shortlister(learned)
        likely = Likely(self.vectors, self.offset.detach(), counts, learned)
        if index is None:
            return Learner(self.ready(), ExactIndex(self.vectors[:learned]), likely, device)
        plain = self.settings.shortlist in ("hnsw", "parabel")
        level = None if plain else head_offset(len(self.heads), self.settings)
        likely = replace(likely, found=index.width, head_offset=level, added=self.settings.loss == "decoupled")
        return Learner(self.ready(), index, likely, device, None if self.finder is None else self.seeking())


class Finder(nn.Module):
    """Token vectors and text block as Module II leaves them, for S has learned with them; lite shares the first."""

    def __init__(self, tokens: Table, documents: TextBlock) -> None:
        super().__init__()
        self.tokens, self.documents = tokens, documents

    @classmethod
    def of(cls, network: Network) -> Finder:
        """Return what a network has now, which will not change with it."""
        tokens = network.tokens if network.settings.lite else deepcopy(network.tokens)
        return cls(tokens, deepcopy(network.documents))


@dataclass(frozen=True)
class Likely:
    """Scores labels by s_l = σ(w_l · x) · σ(h_m · x), the second factor where S finds labels by their clusters m.

    Labels that came later, of which only texts are known, are all looked at, and judged with caution: `cautious`.
    """

    vectors: Tensor  # w [L, D]
    offset: Tensor
    counts: Tensor  # [L]
    learned: int  # labels that were there when the model learned
    found: int | None = None  # how many labels are on a shortlist
    head_offset: float | None = None  # of clusters' scores, where they count
    added: bool = False  # ln σ(h_m · x) joins w_l · x: a loss without an offset has told nothing of σ(w_l · x)

    def width(self, k: int) -> int:
        """Return how many labels must be found to rank k."""
        return k + SPARE if self.found is None else self.found

    @torch.no_grad()
    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank labels. In float64: in float32 the last bit of a sigmoid depends on its place in the batch."""
        ids, scores = self.scored(queries, shortlist)
        if self.learned < len(self.vectors):
            later = ExactIndex(self.vectors[self.learned :]).search(queries, k + SPARE)
            more = known(queries, Shortlist(later.ids + self.learned, later.scores))
            more = more.masked_fill(~self.told[later.ids], -1)
            scores = torch.cat([scores, cautious(self.products(queries, more), scores, ids >= 0)], dim=1)
            ids = torch.cat([ids, more], dim=1)
        return with_others(ids, listed(scores), self.counts, k)

    @cached_property
    def told(self) -> Tensor:
        """Whether a word of a label that came later is known, [n]; without one, nothing speaks for it."""
        return self.vectors[self.learned :].any(dim=1)

    def scored(self, queries: Tensor, shortlist: Shortlist) -> tuple[Tensor, Tensor]:
        """Return candidates that were learned, [B, W], and their scores in float64."""
        ids, looked_at_all = known(queries, shortlist), self.found is None
        if not looked_at_all:  # a fit that was broken off may have left labels in the index that are not learned yet
            ids = ids.masked_fill(ids >= self.learned, -1)
        steady = shortlist.steady and looked_at_all  # else scores are of other vectors
        products = (shortlist.scores + self.offset).double() if steady else self.products(queries, ids)
        if self.head_offset is not None and self.added:
            products = products + F.logsigmoid(shortlist.scores.double() + self.head_offset)
        scores = torch.sigmoid(products)
        if self.head_offset is not None and not self.added:
            scores = scores * torch.sigmoid(shortlist.scores.double() + self.head_offset)
        return ids, scores

    def products(self, queries: Tensor, ids: Tensor) -> Tensor:
        """Return w · x + offset of each query's labels, [B, W]."""
        return (row_products(queries, self.vectors, ids.clamp_min(0)) + self.offset).double()


def cautious(products: Tensor, learned: Tensor, there: Tensor) -> Tensor:
    """Return scores of labels of which only texts are known, [B, n], from w · x [B, n] and scores of the others [B, W].

    there: [B, W], False where there is no label.

    Nobody has told them which points are not theirs, so they are too sure of themselves. What they say beyond the fifth
    best of the others counts for a quarter, and so does what they fall short of it: they are found, and seldom first.
    """
    best = learned.masked_fill(~there, 0).topk(min(FIFTH, learned.shape[1]), dim=1).values
    place = ((there.sum(dim=1, keepdim=True) + 1) // 2).clamp(1, best.shape[1])  # the middle one, where there are few
    fifth = best.gather(1, place - 1)  # [B, 1]
    level = torch.logit(fifth, eps=1e-12)
    return torch.sigmoid(level + CAUTION * (products - level))


def rarity(counts: Tensor) -> Tensor:
    """Return ln(n̄ / n_l), [L]; n_l is one more than a label's points, and n̄ its geometric mean over right labels.

    So 0 is what a right label has on average, and what those have that come later, of which `cautious` knows enough.

    >>> rarity(torch.tensor([3, 0, 1])).exp()  # n̄ = (4³ · 2) ** (1 / 4) = 3.364
    tensor([0.8409, 3.3636, 1.6818], dtype=torch.float64)
    """
    logs = torch.log1p(counts.double())
    return counts.double() @ logs / counts.sum().clamp_min(1) - logs


def largest_power(found: Mapping[float, float]) -> float:
    """Return the largest power whose goodness is all but the best.

    >>> largest_power({0.0: 0.7, 0.1: 0.7004, 0.2: 0.7, 0.3: 0.69})
    0.2
    """
    return max(power for power, good in found.items() if good >= max(found.values()) - SPARED)


def head_offset(count: int, settings: DecafSettings) -> float:
    """Return what is added to the scores of so many clusters."""
    return -SCALE * math.log(max(count, 2)) / 3 if settings.cosine else 0.0


class Heads(nn.Module):
    """The classifiers h_m of clusters: E_L(u_m) in Module I; in Module II Σ E_L(z_l), refinement and a combination."""

    def __init__(self, network: Network, texts: csr_array | None, clusters: NDArray[np.int32], second: bool) -> None:
        super().__init__()
        self.network, self.second, device = [network], second, network.vectors.device  # the list hides its parameters
        self.clusters = torch.from_numpy(clusters).long().to(device)
        self.count = int(clusters.max(initial=0)) + 1
        owned = csr_array((np.ones(len(clusters), dtype=np.float32), (clusters, np.arange(len(clusters)))))
        meta = None if texts is None else (owned @ texts).tocsr()  # u_m = Σ z_l
        shown = texts if second else meta
        self.texts = None if shown is None else bags(shown).to(device)
        width, refined = network.settings.dimension, (second and network.settings.refinement) or texts is None
        draws = torch.Generator().manual_seed(0)
        self.refinement = Table(self.count if refined else 0, width, draws, scale=network.settings.spread).to(device)
        if second and refined and meta is not None:
            with torch.no_grad():
                self.refinement.rows.copy_(network.tokens.eval()(bags(meta).to(device)))
        self.combination = Combination(width).to(device)

    def forward(self, drop: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """Return h of all clusters, [K, D]."""
        text = None
        if self.texts is not None:
            text = self.network[0].label_texts(self.texts, drop, generator)
            if self.second:
                text = text.new_zeros(self.count, text.shape[1]).index_add_(0, self.clusters, text)
        refined = self.refinement.gather() if len(self.refinement.rows) else None
        combined: Tensor = self.combination(refined, text)  # the paper has them the other way round for clusters
        scale = SCALE * math.log(max(self.count, 2))
        return scale * F.normalize(combined, dim=1) if self.network[0].settings.cosine else combined


@torch.no_grad()
def encoded(network: Network, part: Part, rows: NDArray[np.int64]) -> Tensor:
    """Return x̂ of some points, [B, D]."""
    found: Tensor = network.eval().ready()(bags(part.X, rows).to(network.vectors.device))
    return found


@torch.no_grad()
def sought(network: Network, part: Part, rows: NDArray[np.int64]) -> Tensor:
    """Return x̂ of some points as S has it, [B, D]."""
    found: Tensor = network.eval().seeking()(bags(part.X, rows).to(network.vectors.device))
    return found


def batches(points: int) -> list[NDArray[np.int64]]:
    """Return the rows of so many points, some at a time."""
    return np.split(np.arange(points), range(BATCH, points, BATCH))


def clustered_labels(Y: csr_array, clusters: NDArray[np.integer], count: int) -> csr_array:
    """Return which clusters hold a label of each point, [N, K]."""
    ends = Y.indptr.copy()  # what follows writes into them
    found = csr_array((np.ones(Y.nnz, dtype=np.float32), clusters[Y.indices], ends), shape=(Y.shape[0], count))
    found.sum_duplicates()
    found.data[:] = 1
    return found


@torch.no_grad()
def cluster_ranks(network: Network, part: Part) -> NDArray[np.int64]:
    """Return for each label of each point how many clusters score above its own, [T]."""
    ranks = []
    for rows in batches(len(part)):
        scores = products(sought(network, part, rows), network.heads)  # [B, K]
        own = bags(part.Y, rows).to(scores.device)
        counts = own.offsets.diff()
        owners = torch.arange(len(own), device=scores.device).repeat_interleave(counts)
        places = torch.arange(len(owners), device=scores.device) - own.offsets[owners]
        mine = scores.new_zeros(len(own), int(counts.max()))  # [B, most], so that no row of scores is needed twice
        mine[owners, places] = scores[owners, network.clusters.long()[own.ids]]
        below = torch.searchsorted(scores.sort(dim=1).values, mine, right=True)
        ranks.append(scores.shape[1] - below[owners, places])
    return torch.cat(ranks).cpu().numpy()


def padded_bags(ids: Tensor) -> Bags:
    """Return lists of labels [B, W], of which -1 are none, as bags."""
    there = ids >= 0
    ends = F.pad(there.sum(dim=1).cumsum(0), (1, 0))
    return Bags(ids[there], torch.ones(int(ends[-1]), device=ids.device), ends)
