"""The parts of DECAF's learners: text blocks, classifiers of labels and of clusters, and prediction (Sec. 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.index import Search
from zipfel.index.exact import SPARE, ExactIndex, row_products
from zipfel.models.decaf_settings import DecafSettings
from zipfel.models.learner import BATCH, Learner, Scorer, candidate_scores, candidates_of, rank_candidates
from zipfel.models.shortlisters import Shortlister
from zipfel.models.split import SplitIndex
from zipfel.nn.classifiers import Combination
from zipfel.nn.encoders import EmbeddingTable, PredictionEncoder, TextBlock, dropped
from zipfel.training.ranks import World
from zipfel.types import Bags, Ranking, Share, Shortlist

FIFTH, CAUTION = 5, 0.25  # chosen on validation of LF-PubMedMeSH: docs/papers/decaf.md


class Network(nn.Module):
    """One learner: token vectors E, text blocks E_D and E_L, refinement vectors ẑ², their combination C_L; and S."""

    composed_classifiers: Tensor  # w of all labels, [L, D], once `compose` was called; with a bias [L, D + 1]
    rare_power: Tensor  # γ of `decaf_rare.boost_rare`

    by_label = ("composed_classifiers",)

    def __init__(
        self, features: int, labels: int, settings: DecafSettings, generator: torch.Generator, own: Share | None = None
    ) -> None:
        super().__init__()
        self.settings, self.own, self.world, D = settings, own, World(), settings.dimension
        self.tokens = EmbeddingTable(features, D, generator, std=settings.initial_std)
        self.document_block, self.label_block = TextBlock(D), TextBlock(D)
        self.refinement = EmbeddingTable(labels, D, generator, settings.initial_std, own)
        self.combination = Combination(D)
        self.bias = EmbeddingTable(labels, 1, generator, 0.0, own) if settings.label_bias else None
        start = settings.initial_scale(labels) if settings.cosine else 1.0
        self.scale = nn.Parameter(torch.tensor(start), requires_grad=settings.cosine)
        self.offset = nn.Parameter(torch.tensor(-start / 3 if settings.cosine else 0.0), requires_grad=settings.cosine)
        self.register_buffer(
            "composed_classifiers", torch.zeros(labels if own is None else own.size, D + settings.label_bias)
        )
        self.register_buffer("rare_power", torch.zeros(()))
        self.shortlister: Shortlister | None = None  # none: all labels are candidates

    # --- Document and label-text embedding, and classifiers ----------------------------------------------------------

    def encode(self, points: Bags, dropout: float, generator: torch.Generator, share: Share | None = None) -> Tensor:
        """Return x̂ = ReLU(E_D(x)), [B, D], with dropout; with `cosine`, of length 1.  share: of the batch's points."""
        settings, sums = self.settings, self.tokens(points)
        x = self.document_block(sums, dropout, generator, share) if settings.residual else sums
        x = dropped(F.relu(x), dropout, generator, share) if settings.relu else x
        return F.normalize(x, dim=1) if settings.cosine else x

    def label_texts(self, texts: Bags, dropout: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """Return ẑ¹ = E_L(z) of texts, [S, D]; with dropout and several ranks, of this rank's labels."""
        sums: Tensor = self.tokens(texts)
        return self.label_block(sums, dropout, generator, self.own) if self.settings.residual else sums

    def classifiers(
        self, labels: Tensor | None, texts: Bags | None, dropout: float = 0.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return w_l = σ(α_L) ⊙ ẑ¹_l + σ(β_L) ⊙ ẑ²_l of labels [S], or all, with their texts, [S, D].

        With `label_bias`, a column with the bias follows: scores are products with (x̂, 1).
        """
        text = self.label_texts(texts, dropout, generator) if texts is not None else None
        refined = self.refinement.gather(labels) if self.settings.refinement or text is None else None
        W = self.scaled(self.combination(text, refined))
        return W if self.bias is None else torch.cat([W, self.bias.gather(labels)], dim=1)

    def cold_classifiers(self, texts: Bags) -> Tensor:
        """Return w of labels known by their texts only, [S, D]: ẑ¹ = E_L(z), ẑ² = E z; their bias is the mean one.

        All is 0 where a text has no known word.
        """
        text = self.label_texts(texts) if self.settings.reads_texts else None
        refined = self.tokens(texts) if self.settings.refinement or text is None else None
        W = self.scaled(self.combination(text, refined))
        return W if self.bias is None else torch.cat([W, self.mean_bias() * W.any(dim=1, keepdim=True)], dim=1)

    def mean_bias(self) -> Tensor:
        """Return the mean bias of the labels that have a classifier, which new labels start with."""
        known = self.composed_classifiers[self.composed_classifiers.any(dim=1), -1]
        return known.sum() / max(1, len(known))

    def scaled(self, W: Tensor) -> Tensor:
        """Return classifiers [S, D] whose products with x̂ are scores."""
        return W * (self.scale / W.norm(dim=1, keepdim=True).clamp_min(1e-12)) if self.settings.cosine else W

    @torch.no_grad()
    def compose(self, Z: csr_array | None) -> None:
        """Compute the classifiers of all labels."""
        self.eval()
        device = self.composed_classifiers.device
        for start in range(0, len(self.composed_classifiers), BATCH):
            labels = torch.arange(start, min(start + BATCH, len(self.composed_classifiers)), device=device)
            texts = None if Z is None else bags(Z[start : start + BATCH]).to(device)
            self.composed_classifiers[labels] = self.classifiers(labels, texts)

    def text_parts(self) -> tuple[nn.Module, ...]:
        """Return the parts that Module I trains: E, E_D and E_L."""
        return self.tokens, self.document_block, self.label_block

    # --- Prediction --------------------------------------------------------------------------------------------------

    def prediction_encoder(self) -> PredictionEncoder:
        """Return the encoder that prediction uses."""
        settings = self.settings
        block = self.document_block if settings.residual else None
        return PredictionEncoder(self.tokens, block, settings.cosine, settings.relu)

    @torch.no_grad()
    def encoded(self, part: Part, rows: NDArray[np.int64]) -> Tensor:
        """Return x̂ of some points, [B, D]."""
        vectors: Tensor = self.eval().prediction_encoder()(bags(part.X, rows).to(self.composed_classifiers.device))
        return vectors

    def learner(self, counts: Tensor, learned: int) -> Learner:
        """Return the learner; labels after the first `learned` are known by their texts only."""
        if self.own is not None:
            return self.split_learner(counts, self.own)
        shortlister, device = self.shortlister, self.composed_classifiers.device
        W, in_logits = self.composed_classifiers, self.settings.loss == "decoupled"
        classifier = DecafClassifier(W, self.offset.detach(), counts, learned, in_logits=in_logits)
        if shortlister is None:
            return Learner(
                self.prediction_encoder(), ExactIndex(W[:learned]), classifier, device, has_bias=self.bias is not None
            )
        index = shortlister.index(learned)
        classifier = replace(classifier, shortlist_size=index.width, cluster_offset=shortlister.score_offset())
        return Learner(
            self.prediction_encoder(), index, classifier, device, shortlister.encoder(), has_bias=self.bias is not None
        )

    def split_learner(self, counts: Tensor, own: Share) -> Learner:
        """Return the learner over the labels of all ranks, which call it together."""
        W, device = self.composed_classifiers, self.composed_classifiers.device
        classifier = DecafClassifier(W, self.offset.detach(), counts, own.total)
        index = SplitIndex(ExactIndex(W), W, own, self.world)
        return Learner(self.prediction_encoder(), index, classifier, device, has_bias=self.bias is not None)


@dataclass(frozen=True)
class DecafClassifier:
    """Scores labels by s_l = σ(w_l · x) · σ(h_m · x); the second factor if S selects labels by clusters m.

    New labels known by their texts only are all candidates, and scored with caution: `cautious`.
    """

    vectors: Tensor  # w [L, D]
    offset: Tensor
    counts: Tensor  # [L]
    learned: int  # labels that existed in training
    shortlist_size: int | None = None  # None: all labels are candidates
    cluster_offset: float | None = None  # added to clusters' scores, where they count
    in_logits: bool = False  # add ln σ(h_m · x) to w_l · x, which is no log-odds after the decoupled loss
    point_labels: None = None

    def width(self, k: int) -> int:
        """Return how many candidates it takes to rank k labels."""
        return k + SPARE if self.shortlist_size is None else self.shortlist_size

    @torch.no_grad()
    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank labels. In float64: in float32 the last bit of a sigmoid depends on its position in the batch."""
        ids, scores = self.scored(queries, shortlist)
        if self.learned < len(self.vectors):
            new = ExactIndex(self.vectors[self.learned :]).search(queries, k + SPARE)
            more = candidates_of(queries, Shortlist(new.ids + self.learned, new.scores))
            more = more.masked_fill(~self.has_known_words[new.ids], -1)
            scores = torch.cat([scores, cautious(self.products(queries, more), scores, ids >= 0)], dim=1)
            ids = torch.cat([ids, more], dim=1)
        return rank_candidates(ids, candidate_scores(scores), self.counts, k)

    def scorer(self, label: int, query: Tensor, index: Search) -> Scorer:
        """Return the log-odds of the label; the score of its cluster, of other vectors, is taken as constant."""
        return lambda vectors: vectors @ self.vectors[label] + self.offset

    @cached_property
    def has_known_words(self) -> Tensor:
        """Whether the text of each new label has a known word, [n]."""
        return self.vectors[self.learned :].any(dim=1)

    def scored(self, queries: Tensor, shortlist: Shortlist) -> tuple[Tensor, Tensor]:
        """Return candidates among the learned labels, [B, W], and their scores in float64."""
        ids, exact = candidates_of(queries, shortlist), self.shortlist_size is None
        if not exact:  # an interrupted fit may have left labels in the index that are not learned yet
            ids = ids.masked_fill(ids >= self.learned, -1)
        steady = shortlist.steady and exact  # else the shortlist's scores are of other vectors
        products = (shortlist.scores + self.offset).double() if steady else self.products(queries, ids)
        if self.cluster_offset is None:
            return ids, torch.sigmoid(products)
        clusters = shortlist.scores.double() + self.cluster_offset  # h_m · x
        if self.in_logits:
            return ids, torch.sigmoid(products + F.logsigmoid(clusters))
        return ids, torch.sigmoid(products) * torch.sigmoid(clusters)

    def products(self, queries: Tensor, ids: Tensor) -> Tensor:
        """Return w · x + offset of each query's labels, [B, W]."""
        return (row_products(queries, self.vectors, ids.clamp_min(0)) + self.offset).double()


def cautious(products: Tensor, learned: Tensor, present: Tensor) -> Tensor:
    """Return scores of labels known by their texts only, [B, n].

    products: their w · x, [B, n].  learned: scores of the other labels, [B, W].  present: [B, W], False where padded.

    New labels have not learned which points are not theirs, so they score too high. Only a quarter of the difference
    between their logit and that of the fifth best other label counts: they are ranked, and seldom first.
    """
    best = learned.masked_fill(~present, 0).topk(min(FIFTH, learned.shape[1]), dim=1).values
    rank = ((present.sum(dim=1, keepdim=True) + 1) // 2).clamp(1, best.shape[1])  # the median, where there are few
    fifth = best.gather(1, rank - 1)  # [B, 1]
    logit = torch.logit(fifth, eps=1e-12)
    return torch.sigmoid(logit + CAUTION * (products - logit))


class ClusterClassifiers(nn.Module):
    """The classifiers h_m of clusters (meta-labels).

    Module I: E_L(u_m) of a cluster's text u_m = Σ z_l.  Module II: Σ E_L(z_l), refinement vectors, a combination of
    both, and with `label_bias` a bias.
    """

    def __init__(self, network: Network, texts: csr_array | None, clusters: NDArray[np.int32], module: int) -> None:
        super().__init__()
        self.module, self.settings, device = module, network.settings, network.composed_classifiers.device
        self.clusters = torch.from_numpy(clusters).long().to(device)
        self.count = int(clusters.max(initial=0)) + 1
        members = csr_array((np.ones(len(clusters), dtype=np.float32), (clusters, np.arange(len(clusters)))))
        settings, width = network.settings, network.settings.dimension
        cluster_texts = None if texts is None else (members @ texts).tocsr()  # u_m = Σ z_l
        if cluster_texts is not None and settings.unit_cluster_texts:
            cluster_texts = unit_rows(cluster_texts)
        read = cluster_texts if module == 1 else texts if settings.reads_texts else None
        self.texts = None if read is None else bags(read).to(device)
        refined = read is None or (module == 2 and settings.refinement)
        draws = torch.Generator().manual_seed(0)
        rows, std = self.count if refined else 0, settings.initial_std
        self.refinement = EmbeddingTable(rows, width, draws, std).to(device)
        starts_at_text = settings.reads_texts or settings.refinement_init == "text"
        if module == 2 and refined and cluster_texts is not None and starts_at_text:
            with torch.no_grad():
                self.refinement.rows.copy_(network.tokens.eval()(bags(cluster_texts).to(device)))
        self.combination = Combination(width).to(device)
        self.bias = (
            nn.Parameter(torch.zeros(self.count, device=device)) if module == 2 and settings.label_bias else None
        )

    def forward(self, network: Network, dropout: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """Return h of all clusters, [K, D]; with a bias, [K, D + 1]."""
        text = None
        if self.texts is not None:
            text = network.label_texts(self.texts, dropout, generator)
            if self.module == 2:
                text = text.new_zeros(self.count, text.shape[1]).index_add_(0, self.clusters, text)
        refined = self.refinement.gather() if len(self.refinement.rows) else None
        combined: Tensor = self.combination(refined, text)  # σ(α̃) ⊙ û² + σ(β̃) ⊙ Σ E_L(z_l)
        scale = self.settings.initial_scale(self.count)
        H = scale * F.normalize(combined, dim=1) if self.settings.cosine else combined
        return H if self.bias is None else torch.cat([H, self.bias[:, None]], dim=1)


def unit_rows(texts: csr_array) -> csr_array:
    """Return texts [K, V] whose rows have length 1; empty ones stay empty."""
    lengths = np.sqrt(texts.multiply(texts).sum(axis=1)).astype(texts.dtype)
    return csr_array(texts.multiply(1 / np.maximum(lengths, 1e-12)[:, None]))
