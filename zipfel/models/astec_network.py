"""One learner of Astec: features, classifiers, and the search for labels near a point (Modules II to IV)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.index import Index, build_index, load_index
from zipfel.index.exact import ExactIndex, products, row_products
from zipfel.labelspace.graph import walk_step
from zipfel.models.astec_settings import AstecSettings
from zipfel.models.learner import BATCH, Learner, matching_offset, mean_ranking
from zipfel.models.lightdxml import MixedClassifier
from zipfel.models.neighbours import Memory, Vote
from zipfel.models.saving import saved_lengths, tensor_of
from zipfel.models.shortlisters import label_sums
from zipfel.negatives import list_bags, shortlisted, within
from zipfel.nn import losses
from zipfel.nn.classifiers import OneVsAll
from zipfel.nn.encoders import EmbeddingTable, Encoder, PredictionEncoder, ResidualBlock, TextBlock, dropped
from zipfel.training.run import State, part_of, with_prefix
from zipfel.types import Bags, Ranking, Shortlist, stored

JUDGED = 2000  # points whose shortlists tell their recall


class Features(nn.Module):
    """v, the sum of token vectors, of which Module I learns E; and x̂, with the residual layer of Module III."""

    def __init__(self, features: int, settings: AstecSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.settings, D = settings, settings.dimension
        self.tokens = EmbeddingTable(features, D, generator, std=D**-0.5)
        kind = ResidualBlock if settings.features == "relu" else TextBlock
        self.block = kind(D) if settings.residual else None

    def forward(self, points: Bags, generator: torch.Generator, dropout: float | None = None) -> Tensor:
        """Return x̂, [B, D], for learning, with dropout: that of Module IV by default; with `cosine`, of length 1."""
        dropout = self.settings.dropout if dropout is None else dropout
        v: Tensor = self.tokens(points)
        if self.settings.features == "relu":
            v = F.relu(v)
            if self.tokens.training:  # frozen features are computed once, without dropout
                v = dropped(v, dropout, generator)
        elif self.block is None:
            v = dropped(v, dropout, generator)
        x = v if self.block is None else self.block(v, dropout, generator)
        return F.normalize(x, dim=1) if self.settings.cosine else x

    def prediction_encoder(self) -> PredictionEncoder:
        """Return the encoder to x̂."""
        return PredictionEncoder(self.tokens, self.block, self.settings.cosine, self.settings.features == "relu")

    def searched(self) -> PredictionEncoder:
        """Return the encoder to the vectors that labels are searched with: v, or x̂; with `cosine`, of length 1."""
        settings = self.settings
        block = None if settings.search_by == "intermediate" else self.block
        return PredictionEncoder(self.tokens, block, settings.cosine, settings.features == "relu")


class Centroids(nn.Module):
    """What Module II searches: means of v (or x̂) of each label's points; with γ, of each document itself.

    All have length 1 or 0.
    """

    vectors: Tensor  # [L, D]
    documents: Tensor  # [N, D]

    def __init__(self, labels: int, width: int) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.zeros(labels, width))
        self.register_buffer("documents", torch.zeros(0, width))

    def place(self, part: Part, encode: Callable[[Bags], Tensor], smooth: bool) -> None:
        """Compute the vectors of the labels that have points in a part; others keep theirs.

        smooth: first average each with those of labels that share points with it.
        """
        means = F.normalize(label_sums(encode, part, None, torch.zeros_like(self.vectors)), dim=1)
        if smooth:
            means = F.normalize(walked(part.Y, means), dim=1)
        self.vectors.copy_(torch.where(means.any(dim=1, keepdim=True), means, self.vectors))


def walked(Y: csr_array, vectors: Tensor) -> Tensor:
    """Return P v, [L, D]: vectors of labels after a step of a walk to labels that share points."""
    return torch.from_numpy(walk_step(Y) @ vectors.cpu().numpy()).to(vectors)


@dataclass(frozen=True)
class NearLabels:
    """Module II: finds labels by (1 − γ) cos(v, μ_l) + γ s_l.

    s_l: the cosines of near documents that have label l, added up, and divided by the largest sum of the point. A label
    that one of the two searches does not find has 0 there.
    """

    index: Index
    vectors: Tensor  # μ [L, D]
    gamma: float = 0.0
    documents: Index | None = None
    vote: Vote | None = None

    def __len__(self) -> int:
        """Return the number of labels, L."""
        return len(self.index)

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return the best `width` labels of each query, and their scores, which are no inner products with it."""
        queries = F.normalize(queries, dim=1)
        ids = self.index.search(queries, width).ids
        cosines = row_products(queries, self.vectors, ids.clamp_min(0)).masked_fill(ids < 0, 0.0)
        if self.documents is None or self.vote is None:
            return Shortlist(ids, cosines)
        votes = self.votes(queries, self.vote, self.documents, width)
        # `mean_ranking` halves the sum of both
        near = Ranking(ids.cpu().numpy(), (2 * (1 - self.gamma) * cosines).cpu().numpy())
        both = mean_ranking([near, Ranking(votes.ids, np.float32(2 * self.gamma) * votes.scores)], width)
        labels = torch.from_numpy(both.ids)
        scores = torch.from_numpy(both.scores).masked_fill(labels < 0, 0.0)
        return Shortlist(labels.to(ids.device), scores.to(ids.device))

    def votes(self, queries: Tensor, vote: Vote, documents: Index, width: int) -> Ranking:
        """Return s of the labels of near documents, the best `width`."""
        found = documents.search(queries, vote.width(width))
        ranking = Ranking.of_scores(vote.scores(*vote.nearest(queries, found)), width)
        largest = np.maximum(ranking.scores[:, :1], np.float32(1e-12))  # rows are sorted; without votes it is −∞
        return Ranking(ranking.ids, (ranking.scores / largest).astype(np.float32))


class Network(nn.Module):
    """One learner: features, one-vs-all classifiers, and the centroids of labels."""

    def __init__(self, features: int, labels: int, settings: AstecSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.settings = settings
        self.features = Features(features, settings, generator)
        self.classifier = OneVsAll(labels, settings.dimension, settings.cosine, generator, biases=settings.biases)
        self.centroids = Centroids(labels, settings.dimension)
        self.index: Index | None = None  # of labels
        self.documents: Index | None = None
        self.beta = 0.75 if settings.beta is None else settings.beta

    def device(self) -> torch.device:
        """Return the device of the weights."""
        return self.centroids.vectors.device

    # --- Module II: the labels near a point ---------------------------------------------------------------------------

    def place_labels(self, part: Part, documents: csr_array, seed: int) -> None:
        """Compute the centroids of labels, and index them.  documents: features of those that vote, [N, V]."""
        encode = self.features.searched()
        self.centroids.place(part, encode, self.settings.smoothing == "both")
        if documents.shape[0]:
            self.centroids.documents.copy_(F.normalize(self.encoded(documents, encode), dim=1))
        self.build(seed)

    def build(self, seed: int) -> None:
        """Index labels and documents by the vectors that they have."""
        documents = self.centroids.documents
        self.index = self._index(self.centroids.vectors, seed)
        self.documents = self._index(documents, seed) if len(documents) else None

    def _index(self, vectors: Tensor, seed: int) -> Index:
        kind = self.settings.kind(len(vectors), self.device())
        return build_index(kind, vectors, seed, self.settings.deterministic)

    def search(self, document_labels: csr_array) -> NearLabels:
        """Return the search for labels.  document_labels: [N, L]."""
        vectors, documents = self.centroids.vectors, self.centroids.documents
        index = self._moved(self.index, vectors)
        if not len(documents):
            return NearLabels(index, vectors)
        memory = Memory(documents, document_labels, csr_array(document_labels.shape))
        vote = Vote(memory, self.settings.neighbours, sharpness=1.0)
        return NearLabels(index, vectors, self.settings.gamma, self._moved(self.documents, documents), vote)

    def _moved(self, index: Index | None, vectors: Tensor) -> Index:
        """Return the index, or an exact one over the same vectors: the model may have been moved to another device."""
        assert index is not None
        exact = isinstance(index, ExactIndex) or self.settings.kind(len(vectors), self.device()) == "exact"
        return ExactIndex(vectors) if exact else index

    def shortlists(self, part: Part, document_labels: csr_array) -> Tensor:
        """Return the labels nearest to each point of a part, [N, W]; -1 pads."""
        search, encode = self.search(document_labels), self.features.searched()
        width, queries = self.settings.width(part.Y.shape[1]), torch.split(self.encoded(part.X, encode), BATCH)
        return torch.cat([search.search(some, width).ids.int().cpu() for some in queries])

    def recall(self, part: Part, near: Tensor) -> float:
        """Return the share of labels that are on the shortlists [N, W] of their points, up to JUDGED of a part."""
        some = np.unique(np.linspace(0, len(part) - 1, min(len(part), JUDGED)).astype(np.int64))
        ids, Y = near[torch.from_numpy(some)].numpy().astype(np.int64), part.Y[some]
        rows = np.repeat(np.arange(len(ids)), ids.shape[1])
        return float(stored(Y, rows, ids.ravel()).sum() / max(1, Y.nnz))

    @torch.no_grad()
    def encoded(self, X: csr_array, encode: Encoder) -> Tensor:
        """Return vectors of points, [N, D]."""
        starts = range(0, X.shape[0], BATCH)
        return torch.cat([encode(bags(X[start : start + BATCH]).to(self.device())) for start in starts])

    # --- Module IV ----------------------------------------------------------------------------------------------------

    def loss(self, part: Part, rows: NDArray[np.int64], near: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return the loss of one-vs-all classifiers on right labels and on shortlists `near` [B, W], or on all labels.

        Random labels join the shortlists. With negatives=shared, the shortlists of a batch count for all its points.
        """
        settings, device, decoupled = self.settings, self.device(), self.settings.loss == "decoupled"
        x = self.features(bags(part.X, rows).to(device), generator)  # [B, D]
        lists = near
        if near is not None:
            drawn = torch.randint(part.Y.shape[1], (len(rows), settings.random_negatives), generator=generator)
            lists = torch.cat([near.long(), drawn], dim=1)
        if lists is not None and settings.negatives == "own":
            candidates = shortlisted(part, rows, lists, device)
            loss = losses.decoupled if decoupled else losses.logistic
            return loss(self.classifier(x, candidates.labels), candidates.targets, candidates.mask)
        own = bags(part.Y, rows).to(device)
        filtered = None if part.filtered is None else bags(part.filtered, rows).to(device)
        if lists is None:
            return all_labels(self.classifier, x, None, own, filtered, decoupled)
        pool = torch.unique(torch.cat([own.ids, list_bags(lists.to(device)).ids]))  # [S]
        left_out = None if filtered is None else within(filtered, pool)
        return all_labels(self.classifier, x, pool, within(own, pool), left_out, decoupled)

    def set_offset(self, part: Part) -> None:
        """Set the offset of scores, which the decoupled loss does not learn."""
        if self.settings.loss == "decoupled":
            (scale, offsets), W, encode = (
                self.classifier.scale_and_offset(),
                self.classifier.composed(),
                self.features.prediction_encoder(),
            )
            more = offsets - self.classifier.offset.detach()  # biases
            offset = matching_offset(part, lambda some: scale * products(self.encoded(some.X, encode), W) + more)
            self.classifier.offset.detach().fill_(offset)

    # --- Prediction ---------------------------------------------------------------------------------------------------

    def learner(self, document_labels: csr_array, counts: Tensor) -> Learner:
        """Return the learner: β σ(w_l · x̂ + b_l) + (1 − β) σ(score of the shortlist)."""
        settings, (scale, offset) = self.settings, self.classifier.scale_and_offset()
        mixed = MixedClassifier(
            self.centroids.vectors, self.classifier.composed(), scale, offset, counts, self.beta,
            settings.width(len(counts)), settings.searches_apart,
        )  # fmt: skip
        apart = settings.search_by == "intermediate" and settings.residual
        search_encoder = self.features.searched() if apart else None
        return Learner(
            self.features.prediction_encoder(), self.search(document_labels), mixed, self.device(), search_encoder
        )

    # --- Growing and saving -------------------------------------------------------------------------------------------

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Append labels with random classifiers, on no shortlist yet."""
        self.classifier.grow(count, generator)
        self.centroids.vectors = F.pad(self.centroids.vectors, (0, 0, 0, count))

    def more_tensors(self) -> State:
        """Return β, classifiers ready for prediction and their lengths, and the indices."""
        assert self.index is not None
        beta = torch.tensor(self.beta, dtype=torch.float64)  # in float32 the last bits of scores would change
        state = {"beta": beta, "classifier.labels.rows": self.classifier.composed(), **self.classifier.lengths()}
        documents = {} if self.documents is None else with_prefix("documents.", self.documents.state())
        return {**state, **with_prefix("index.", self.index.state()), **documents}

    def take_tensors(self, more: State) -> None:
        """Take the state that `more_tensors` returned."""
        self.beta = float(tensor_of(more, "beta", torch.float64))
        self.classifier.stored_lengths = saved_lengths(more, len(self.classifier.labels.rows))
        self.index = self._loaded(part_of(more, "index."), self.centroids.vectors)
        if len(self.centroids.documents):
            self.documents = self._loaded(part_of(more, "documents."), self.centroids.documents)

    def _loaded(self, state: State, vectors: Tensor) -> Index:
        return load_index(self.settings.kind(len(vectors), torch.device("cpu")), state, vectors)


def all_labels(
    classifier: OneVsAll, x: Tensor, labels: Tensor | None, right: Bags, left_out: Bags | None, decoupled: bool
) -> Tensor:
    """Return the loss of points x [B, D] over labels [S], or all, a chunk of labels at a time."""
    x, W = classifier.widened(x), classifier.scaled(labels)
    if decoupled:
        return losses.decoupled_all(x, W, right, left_out)
    return losses.all_labels(x, W, classifier.offset, right, left_out)
