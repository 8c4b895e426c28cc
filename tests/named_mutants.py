"""What `make mutants` changes: the code of each model, with its tests; and changes that once passed every test."""

from __future__ import annotations

from typing import NamedTuple

from named_mutants_astec import MUTANTS as ASTEC_MUTANTS
from named_mutants_decaf import MUTANTS as DECAF_MUTANTS
from named_mutants_light import MUTANTS as LIGHT_MUTANTS
from named_mutants_neighbours import MUTANTS as NEIGHBOURS

GLAS, DECAF, NETWORK = "zipfel/models/glas.py", "zipfel/models/decaf.py", "zipfel/models/decaf_network.py"
GRAPH, NEGATIVES = "zipfel/labelspace/graph.py", "zipfel/negatives.py"
GLAS_STEP, DECAF_STEP = "tests/models/test_glas_step.py", "tests/models/test_decaf_step.py"


STEPS = {  # tests of a model as a whole, which run first
    "glas": (GLAS_STEP,),
    "mnn": ("tests/models/test_mnn_step.py", "tests/models/test_mnn.py"),
    "dxml": ("tests/models/test_dxml_step.py", "tests/models/test_dxml.py", "tests/models/test_dxml_incremental.py"),
    "lightdxml": ("tests/models/test_lightdxml_step.py",),
    "decaf": (DECAF_STEP, "tests/models/test_decaf_paper.py"),
    "astec": ("tests/models/test_astec_step.py",),
}
TESTS = {  # of each file, which run then; several are separated by blanks
    GLAS: "tests/models/test_settings.py",
    DECAF: "tests/models/test_decaf.py",
    NETWORK: "tests/models/test_decaf.py",
    "zipfel/models/mnn.py": "tests/models/test_settings.py",
    "zipfel/models/dxml.py": "tests/models/test_settings.py",
    "zipfel/models/astec.py": "tests/models/test_astec.py",
    "zipfel/models/astec_model.py": "tests/models/test_settings.py tests/models/test_astec.py",
    "zipfel/models/astec_network.py": "tests/models/test_astec.py",
    "zipfel/models/astec_settings.py": "tests/models/test_settings.py tests/models/test_astec.py",
    "zipfel/models/lightdxml.py": "tests/models/test_reranker.py tests/models/test_lightdxml.py",
    "zipfel/models/lightdxml_beta.py": "tests/models/test_lightdxml.py",
    "zipfel/models/lightdxml_model.py": "tests/models/test_reranker.py tests/models/test_lightdxml.py",
    "zipfel/models/lightdxml_settings.py": "tests/models/test_settings.py tests/models/test_lightdxml.py",
    "zipfel/models/reranker.py": "tests/models/test_reranker.py",
    "zipfel/models/tokens.py": "tests/models/test_lightdxml.py",
    "zipfel/models/neighbours.py": "tests/models/test_neighbours.py",
    "zipfel/models/shortlisters.py": "tests/models/test_shortlisters.py tests/models/test_decaf.py",
    "zipfel/labelspace/centroids.py": "tests/labelspace/test_clusters.py",
    "zipfel/labelspace/clusters.py": "tests/labelspace/test_clusters.py",
    "zipfel/labelspace/deepwalk.py": "tests/labelspace/test_deepwalk.py",
    "zipfel/labelspace/vectors.py": "tests/labelspace/test_vectors.py",
    GRAPH: "tests/labelspace/test_graph.py",
    "zipfel/nn/classifiers.py": "tests/nn/test_classifiers.py",
    "zipfel/nn/encoders.py": "tests/nn/test_encoders.py",
    "zipfel/nn/losses.py": "tests/nn/test_losses.py",
    "zipfel/nn/optim.py": "tests/nn/test_optim.py",
    "zipfel/nn/regularizers.py": "tests/nn/test_regularizers.py",
    NEGATIVES: "tests/test_negatives.py tests/models/test_reranker.py",
    "zipfel/models/decaf_model.py": "tests/models/test_settings.py tests/models/test_decaf.py",
    "zipfel/models/decaf_rare.py": "tests/models/test_decaf.py",
    "zipfel/models/decaf_settings.py": "tests/models/test_settings.py",
    "zipfel/index/beam.py": "tests/index/test_beam.py",
    "zipfel/index/tree.py": "tests/index/test_tree.py",
}
MODELS: dict[str, dict[str, tuple[str, ...]]] = {  # files of a model, and the parts of them that it uses; () for all
    "glas": {
        GLAS: (),
        "zipfel/nn/regularizers.py": (),
        "zipfel/nn/losses.py": ("margin", "softmax", "logistic"),
        "zipfel/nn/encoders.py": ("EmbeddingTable", "TransposedBags", "_BagSum", "NormedLinear", "drop_features"),
        "zipfel/nn/classifiers.py": ("OneVsAll",),
        GRAPH: ("cooccurrence", "adjacency", "normalised_information"),
        NEGATIVES: ("sampled_positives", "within", "holds", "hardest", "sampled_negatives"),
    },
    "mnn": {
        "zipfel/models/mnn.py": (),
        "zipfel/models/neighbours.py": (),
        "zipfel/nn/losses.py": ("matching", "reduced"),
        "zipfel/nn/encoders.py": ("averaged", "AveragingNetwork"),
    },
    "dxml": {
        "zipfel/models/dxml.py": (),
        "zipfel/labelspace/deepwalk.py": (),
        "zipfel/labelspace/vectors.py": (),
        "zipfel/labelspace/graph.py": ("label_graph", "pmi_graph"),
        "zipfel/nn/losses.py": ("smooth_l1",),
        "zipfel/nn/optim.py": ("Sgd",),
    },
    "lightdxml": {
        "zipfel/models/lightdxml.py": (),
        "zipfel/models/lightdxml_beta.py": (),
        "zipfel/models/lightdxml_model.py": (),
        "zipfel/models/lightdxml_settings.py": (),
        "zipfel/models/reranker.py": (),
        "zipfel/models/tokens.py": (),
        "zipfel/nn/losses.py": (
            "log_distance",
            "logistic",
            "decoupled",
            "all_labels",
            "decoupled_all",
            "_Chunks",
            "_AllLabels",
            "_DecoupledAll",
            "wrong_weights",
            "pairs_by_chunk",
        ),
        "zipfel/nn/encoders.py": (
            "EmbeddingTable",
            "TransposedBags",
            "_BagSum",
            "TextBlock",
            "PredictionEncoder",
            "dropped",
        ),
        "zipfel/nn/classifiers.py": ("OneVsAll",),
        NEGATIVES: ("within", "holds", "pooled", "shortlisted", "list_bags"),
    },
    "decaf": {
        DECAF: (),
        NETWORK: (),
        "zipfel/models/decaf_model.py": (),
        "zipfel/models/decaf_rare.py": (),
        "zipfel/models/decaf_settings.py": (),
        "zipfel/models/shortlisters.py": (),
        "zipfel/models/tokens.py": (),
        "zipfel/labelspace/centroids.py": (),
        "zipfel/labelspace/clusters.py": (),
        "zipfel/index/beam.py": (),
        "zipfel/index/tree.py": (),
        "zipfel/nn/losses.py": (
            "logistic",
            "decoupled",
            "all_labels",
            "decoupled_all",
            "_Chunk",
            "_Chunks",
            "half",
            "_MeanOfPoints",
            "_AllLabels",
            "_DecoupledAll",
            "wrong_weights",
            "pairs_by_chunk",
        ),
        "zipfel/nn/encoders.py": (
            "EmbeddingTable",
            "weighted_sum",
            "TransposedBags",
            "Reused",
            "_BagSum",
            "TextBlock",
            "QuantizedTextBlock",
            "PredictionEncoder",
            "dropped",
        ),
        "zipfel/nn/classifiers.py": ("Combination",),
        NEGATIVES: ("within", "holds", "pooled", "list_bags"),
    },
    "astec": {
        "zipfel/models/astec.py": (),
        "zipfel/models/astec_model.py": (),
        "zipfel/models/astec_network.py": (),
        "zipfel/models/astec_settings.py": (),
        "zipfel/labelspace/graph.py": ("walk_step",),
        "zipfel/nn/encoders.py": ("ResidualBlock", "SteadyResidual"),
        "zipfel/nn/classifiers.py": ("OneVsAll",),
    },
}


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
        "self.embedding(drop_features(points, settings.feature_dropout, generator, entries))", "self.embedding(points)",
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
        "glas", "geometric, pmi and jaccard ignored", GLAS,
        "adjacency(self.A, labels.cpu().numpy(), self.settings.adjacency, self.points)",
        "adjacency(self.A, labels.cpu().numpy())",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "pmi without log", GRAPH,
        "np.maximum(both - (alone[:, None] + alone[None, :]), 0)", "np.exp(both - (alone[:, None] + alone[None, :]))",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "jaccard of the sum in place of the union", GRAPH,
        "counts[:, None] + counts[None, :] - part", "counts[:, None] + counts[None, :]",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "easiest negatives", GLAS,
        "        return hardest(scores, excluded, count)",
        "        negatives, mask = hardest(-scores, excluded, count)\n        return -negatives, mask",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "sampled where hardest is set", GLAS,
        "return hardest(scores, excluded, count)", "return sampled_negatives(scores, excluded, count, generator)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "hardest where sampled is set", GLAS,
        "return sampled_negatives(scores, excluded, count, generator)", "return hardest(scores, excluded, count)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "hardest where all are set", GLAS,
        "return scores, ~excluded", "return hardest(scores, excluded, count)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "own labels among all", GLAS,
        "return scores, ~excluded", "return scores, torch.ones_like(excluded)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "own labels among the sampled", GLAS,
        "return sampled_negatives(scores, excluded, count, generator)",
        "return sampled_negatives(scores, torch.zeros_like(excluded), count, generator)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "a sample that is not scaled up", NEGATIVES,
        "mask * (present / mask.sum(dim=1, keepdim=True).clamp_min(1))", "mask",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "the input layer is not normed", GLAS,
        "(sums if self.length is None else sums * self.factors(self.length))", "sums",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "one norm for all neurons", GLAS,
        "self.input.gather().norm(dim=0)", "self.input.gather().norm()",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "norms of features in place of neurons", GLAS,
        "self.input.gather().norm(dim=0)", "self.input.gather().norm(dim=1)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "norms without a gradient", GLAS,
        "self.input.gather().norm(dim=0)", "self.input.rows.detach().norm(dim=0)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "index ignored", GLAS,
        "if index is None or isinstance(index, ExactIndex):", "if True:",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "index not saved", GLAS,
        'return vectors if self.index is None else vectors | with_prefix("index.", self.index.state())',
        "return vectors",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "preset paper never stops early", GLAS,
        "learning_rate=0.008, patience=1,", "learning_rate=0.008,",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "preset paper makes 400 steps at least", GLAS,
        "epochs=10, min_steps=1,", "epochs=10,",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "a batch of an eleventh of train", GLAS,
        "len(train_part) // 10)", "len(train_part) // 11)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "a layer too many", GLAS,
        "for _ in range(settings.layers - 1)", "for _ in range(settings.layers)",
        (GLAS_STEP,),
    ),
    Named(
        "glas", "two layers by default", GLAS,
        '1, "layers of the embedding', '2, "layers of the embedding',
        (GLAS_STEP,),
    ),
]  # fmt: skip
NAMED += [Named(*row) for row in [*NEIGHBOURS, *DECAF_MUTANTS, *ASTEC_MUTANTS, *LIGHT_MUTANTS]]
