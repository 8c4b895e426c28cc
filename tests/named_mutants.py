"""Changes that once passed every test: each must now fail one of the tests it names."""

from __future__ import annotations

from typing import NamedTuple

GLAS, DECAF, NETWORK = "zipfel/models/glas.py", "zipfel/models/decaf.py", "zipfel/models/decaf_network.py"
GLAS_STEP, DECAF_STEP = "tests/models/test_glas_step.py", "tests/models/test_decaf_step.py"


class Named(NamedTuple):
    model: str
    name: str
    file: str
    old: str  # occurs once in the file
    new: str
    tests: tuple[str, ...]


NAMED = [
    Named(
        "glas", "regularizer times 0", GLAS,
        "= settings.regularizer_weight * self._regularizer(", "= 0 * settings.regularizer_weight * self._regularizer(",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "no feature dropout", GLAS,
        "self.embedding(drop_features(points, settings.feature_dropout, generator))", "self.embedding(points)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "spread-out and Gravity swapped", GLAS,
        """\
            return regularizers.spread_out(V)
        if kind == "gravity":
            return regularizers.gravity(vectors, V)
""",
        """\
            return regularizers.gravity(vectors, V)
        if kind == "gravity":
            return regularizers.spread_out(V)
""",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "GLaS and Laplacian swapped", GLAS,
        'regularizers.glas(V, U) if kind == "glas" else', 'regularizers.glas(V, U) if kind != "glas" else',
        (GLAS_STEP,),
    ),
    Named(
        "glas", "geometric ignored", GLAS,
        "adjacency(self.A, labels.cpu().numpy(), self.settings.adjacency)", "adjacency(self.A, labels.cpu().numpy())",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "easiest negatives", GLAS,
        "hardest(scores[chosen], excluded[chosen], settings.negatives)  # [P, negatives]",
        "hardest(-scores[chosen], excluded[chosen], settings.negatives)\n        negatives = -negatives",
        (GLAS_STEP,),
    ),
    Named(
        "decaf", "σ(h·x̂) dropped", NETWORK,
        "torch.sigmoid(products) * torch.sigmoid(clusters)", "torch.sigmoid(products)",
        (DECAF_STEP,),
    ),
    Named(
        "decaf", "no reset of R", DECAF,
        "        network.document_block.reset()\n        network.label_block.reset()\n", "",
        (DECAF_STEP,),
    ),
    Named(
        "decaf", "decoupled loss where logistic is set, shortlist", DECAF,
        'losses.decoupled if settings.loss == "decoupled" else losses.logistic', "losses.decoupled",
        (DECAF_STEP,),
    ),
    Named(
        "decaf", "decoupled loss where logistic is set, all labels", DECAF,
        '{"logistic": losses.all_labels(points, W, network.offset, own, filtered)}',
        '{"logistic": losses.decoupled_all(points, W, own, filtered)}',
        (DECAF_STEP,),
    ),
    Named(
        "decaf", "Module I with Module IV's dropout", DECAF,
        "settings.module1_learning_rate, settings.module1_dropout)",
        "settings.module1_learning_rate, settings.dropout)",
        (DECAF_STEP,),
    ),
    Named(
        "decaf", "Module I with refinement", NETWORK,
        "(module == 2 and network.settings.refinement)", "network.settings.refinement",
        (DECAF_STEP,),
    ),
    Named(
        "decaf", "Module II on sparse centroids", DECAF,
        "label_sums(network.tokens.eval(), part, self.texts, zeros)", "sparse_centroids(part.X, part.Y, self.texts)",
        (DECAF_STEP,),
    ),
]  # fmt: skip
