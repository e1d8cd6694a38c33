"""The table of torch's ops: what the backward of each does with the tensors that it saved.

One row per autograd node. It says of every saved tensor how the gradient depends on it, and with that whether noise in
it is harmless, bounded, or poison. Only what a row allows may be compressed. Everything else is exact, and so is what
a node without a row saved: a Function written by the user, an op of another library, a compiled graph.

    y = x @ W    dW = x^T g       linear in x: noise in x is noise in dW, no more         compressed
    y = log(x)   dx = g / x       a quiet x decoded to nearly nothing is an explosion     exact
    y = x[i]     dx[i] = g        i + 1 is another row                                    exact

Names of autograd's nodes stand in this file alone. tests/unit/quant/test_ops.py goes through torch's own list of
derivatives and fails on a node that saves a tensor and has no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Use(StrEnum):
    """What a backward does with a tensor that was saved for it."""

    LINEAR = "linear"  # a factor of a product: the gradient is linear in it
    NORM_INPUT = "norm input"  # scaled by its own exact statistics, so its noise is bounded
    DERIVATIVE = "derivative"  # of a bounded function with a bounded derivative
    SUPPORT = "support"  # only where it is above zero: exact in the codec of ReLU's outputs
    ATTENTION = "attention"  # coded, if output and log-sum-exp are recomputed from what it decodes to
    RECOMPUTED = "recomputed"  # made again from what the others decode to, or else exact
    SOFTMAX = "softmax"  # probabilities, units that saturate: benign under a matrix product, not under a logarithm
    LOGPROB = "log-probability"  # by a codec whose error in the probability is relative
    SHAPE_ONLY = "shape only"  # no value is read
    MASK = "mask"
    INDEX = "index"
    STATISTIC = "statistic"  # one number scales many
    FRAGILE = "fragile"  # divided by, taken root, power or logarithm of, compared, solved with, looked up by
    WORKSPACE = "workspace"  # a library's own bytes
    UNKNOWN = "unknown"


# What may be compressed: attention and softmax under a condition (saved/uses.py), log-probabilities by one codec.
ALLOWED = frozenset(
    {
        Use.LINEAR,
        Use.NORM_INPUT,
        Use.DERIVATIVE,
        Use.SUPPORT,
        Use.ATTENTION,
        Use.SHAPE_ONLY,
        Use.SOFTMAX,
        Use.LOGPROB,
    }
)

LINEAR, NORM_INPUT, DERIVATIVE, SUPPORT = Use.LINEAR, Use.NORM_INPUT, Use.DERIVATIVE, Use.SUPPORT
ATTENTION_INPUT, SHAPE_ONLY, MASK, INDEX = Use.ATTENTION, Use.SHAPE_ONLY, Use.MASK, Use.INDEX
STATISTIC, FRAGILE, WORKSPACE, UNKNOWN = Use.STATISTIC, Use.FRAGILE, Use.WORKSPACE, Use.UNKNOWN

DEFAULT_FLOW = 1.0


@dataclass(frozen=True, slots=True)
class Op:
    """One autograd node.

    reason   why its uses are what they are
    uses     of each saved tensor, by the name it has in torch's derivatives; of any other: `rest`
    flow     how much of a saved tensor's relative noise passes into the gradient that flows on; measured op by op. 0:
             noise stays in one weight's gradient, or there is none
    rule     the name of the rule that recomputes its output (recompute/rules.py)
    """

    name: str
    reason: str
    uses: Mapping[str, Use]
    rest: Use
    flow: float
    rule: str

    def use(self, field: str) -> Use:
        return self.uses.get(field, self.rest)


OPS: dict[str, Op] = {}


def node_name(op: str) -> str:
    """The name of an op's first derivative: that of Addmm is AddmmBackward0."""
    return op if "Backward" in op else f"{op}Backward0"


def _ops(
    names: str,
    reason: str,
    /,
    *,
    rest: Use = UNKNOWN,
    flow: float = DEFAULT_FLOW,
    rule: str = "",
    **uses: Use,
) -> frozenset[str]:
    """Enters a row for each name; a name without "Backward" is that of its first derivative."""
    found = frozenset(map(node_name, names.split()))
    for name in found:
        assert name not in OPS, name
        OPS[name] = Op(name, reason, MappingProxyType(uses), rest, flow, rule)
    return found


def op_of(name: str) -> Op | None:
    return OPS.get(name)


def short(name: str) -> str:
    """A node's name as people know the op: AddmmBackward0 is Addmm."""
    return name.removesuffix("0").removesuffix("Backward")


# -- products: the gradient is linear in each factor, so relative noise in one is as much relative noise in it

_WEIGHT = "the weight's gradient is linear in the input, the input's in the weight"
_PRODUCT = "the gradient of each factor is linear in the other"

WEIGHT_OPS = (
    _ops("Convolution ConvolutionBackward1 Linear", _WEIGHT, flow=0.0, input=LINEAR, weight=LINEAR)
    | _ops("Addmm", _WEIGHT, flow=0.0, mat1=LINEAR, mat2=LINEAR)
    | _ops("Mm", _WEIGHT, flow=0.0, self=LINEAR, mat2=LINEAR)
)
_ops("ConvolutionOverrideable NnpackSpatialConvolution", _WEIGHT, flow=0.0, input=LINEAR, weight=LINEAR)
_ops(
    "ConvDepthwise2D ConvDepthwise3D CudnnConvolution CudnnConvolutionTranspose MiopenConvolution "
    "MiopenConvolutionTranspose MiopenDepthwiseConvolution MkldnnConvolution MkldnnLinear MpsConvolution "
    "MpsConvolutionTranspose SlowConv2D SlowConv3D SlowConvDilated2D SlowConvDilated3D SlowConvTranspose2D "
    "SlowConvTranspose3D",
    _WEIGHT,
    flow=0.0,
    self=LINEAR,
    weight=LINEAR,
)
_ops("ConvTbc", _WEIGHT, flow=0.0, self=LINEAR, weight=LINEAR, bias=LINEAR)
_ops(
    "ConvolutionBackwardBackward0 ConvolutionBackwardOverrideableBackward0",
    "the gradient of a convolution's gradient is a convolution again",
    grad_output=LINEAR,
    input=LINEAR,
    weight=LINEAR,
)
_ops(
    "MpsConvolutionBackwardBackward0 SlowConv2DBackwardBackward0 LinearBackwardBackward0",
    "the gradient of a product's gradient is a product again",
    grad_output=LINEAR,
    self=LINEAR,
    weight=LINEAR,
)
BMM = "BmmBackward0"
MUL = "MulBackward0"
_BATCHED = _ops("Baddbmm", _PRODUCT, batch1=LINEAR, batch2=LINEAR) | _ops(BMM, _PRODUCT, self=LINEAR, mat2=LINEAR)
_ops("Addbmm", _PRODUCT, batch1=LINEAR, batch2=LINEAR)
_POINTWISE = _ops(
    MUL, f"{_PRODUCT}; under a root or a reciprocal it is fragile", rule="product", self=LINEAR, other=LINEAR
)
_MATMUL = _ops("Matmul", _PRODUCT, self=LINEAR, other=LINEAR)
_ops("LinalgCross Vdot", _PRODUCT, self=LINEAR, other=LINEAR)
_ops("Addmv", _PRODUCT, mat=LINEAR, vec=LINEAR)
_ops("Addr", _PRODUCT, vec1=LINEAR, vec2=LINEAR)
_ops("Mv", _PRODUCT, self=LINEAR, vec=LINEAR)
_ops("Dot", _PRODUCT, self=LINEAR, tensor=LINEAR)
_ops("Trilinear", "linear in each of the three", i1=LINEAR, i2=LINEAR, i3=LINEAR)
_ops("Addcmul", _PRODUCT, tensor1=LINEAR, tensor2=LINEAR)
_ops("GroupedMm", _PRODUCT, flow=0.0, self=LINEAR, mat2=LINEAR, offs=INDEX)
_ops("ForeachMm", _PRODUCT, flow=0.0, self=LINEAR, mat2=LINEAR)
_ops("LerpBackward1", "the weight's gradient is a difference that may cancel", weight=LINEAR, self=FRAGILE, end=FRAGILE)

# Noise in one factor gets into the gradient of the other.
PRODUCTS = _BATCHED | _POINTWISE
MATRIX_PRODUCTS = WEIGHT_OPS | _BATCHED | _MATMUL
# Products whose factors are looked at in the graph (measure/factors.py): of each factor, by its name, whether it is the
# first, and the other's place among the node's inputs.
FACTOR_PLACES: dict[str, dict[str, tuple[bool, int]]] = {
    "ConvolutionBackward0": {"input": (True, 1), "weight": (False, 0)},
    "LinearBackward0": {"input": (True, 1)},
    "AddmmBackward0": {"mat1": (True, 2), "mat2": (False, 1)},
    "MmBackward0": {"self": (True, 1), "mat2": (False, 0)},
    "MatmulBackward0": {"self": (True, 1), "other": (False, 0)},
    "BaddbmmBackward0": {"batch1": (True, 2), "batch2": (False, 1)},
    "AddbmmBackward0": {"batch1": (True, 2), "batch2": (False, 1)},
    BMM: {"self": (True, 1), "mat2": (False, 0)},
    MUL: {"self": (True, 1), "other": (False, 0)},
}

# -- norms: noise in the input is divided by a scale that is exact, and is part of one term of three

_NORM = "the input is scaled by exact statistics of its own, and enters one term of three"
_BATCH_STATS = {"running_mean": STATISTIC, "running_var": STATISTIC, "result1": STATISTIC, "result2": STATISTIC}

BATCH_NORMS = _ops(
    "NativeBatchNorm", _NORM, flow=0.02, rule="batch_norm", input=NORM_INPUT, weight=STATISTIC, **_BATCH_STATS
) | _ops(
    "CudnnBatchNorm",
    _NORM,
    flow=0.02,
    rule="batch_norm",
    input=NORM_INPUT,
    weight=STATISTIC,
    result3=WORKSPACE,
    **_BATCH_STATS,
)
_ops(
    "MiopenBatchNorm NativeBatchNormLegit NativeBatchNormLegitNoTraining",
    _NORM,
    flow=0.02,
    input=NORM_INPUT,
    weight=STATISTIC,
    **_BATCH_STATS,
)
_ops(
    "NativeBatchNormLegitBackward1",
    _NORM,
    flow=0.02,
    input=NORM_INPUT,
    weight=STATISTIC,
    result1=STATISTIC,
    result2=STATISTIC,
)
_ops(
    "BatchNormWithUpdate BatchNormNoUpdate",
    _NORM,
    flow=0.02,
    input=NORM_INPUT,
    weight=STATISTIC,
    result3=WORKSPACE,
    **_BATCH_STATS,
)
LAYER_NORM = "NativeLayerNormBackward0"
_ops(
    LAYER_NORM,
    f"{_NORM}; rows that decode too large are drawn in",
    flow=0.02,
    rule="layer_norm",
    input=NORM_INPUT,
    weight=STATISTIC,
    bias=STATISTIC,
    result1=STATISTIC,
    result2=STATISTIC,
)
GROUP_NORM = "NativeGroupNormBackward0"
_ops(
    GROUP_NORM,
    _NORM,
    rule="group_norm",
    input=NORM_INPUT,
    weight=STATISTIC,
    result1=STATISTIC,
    result2=STATISTIC,
)
RMS_NORM = "FusedRmsNormBackward0"
_ops(RMS_NORM, _NORM, flow=0.02, input=NORM_INPUT, weight=STATISTIC, result1=STATISTIC)

# -- activation functions of their input: the derivative lies between two constants, and noise moves it by little

_SMOOTH = "the derivative is bounded, and so is its slope"
_STEP = "the derivative is one of two constants, and the wrong one only within the noise of a threshold"

GELU = "GeluBackward0"
_ops(GELU, _SMOOTH, flow=2.0, rule="gelu", self=DERIVATIVE)
_ops("Silu", _SMOOTH, flow=2.0, rule="silu", self=DERIVATIVE)
_ops("Mish", _SMOOTH, rule="mish", self=DERIVATIVE)
_ops("Elu", _SMOOTH, rule="elu", self=DERIVATIVE)
_ops("Celu Glu", _SMOOTH, self=DERIVATIVE)
_ops("EluBackward1 CeluBackward1", _SMOOTH, result=DERIVATIVE)
_ops("LeakyRelu", _STEP, rule="leaky_relu", self=DERIVATIVE)
_ops("LeakyReluBackward1", _STEP, result=DERIVATIVE)
_ops("Hardswish", _SMOOTH, rule="hardswish", self=DERIVATIVE)
HARDTANH = "HardtanhBackward0"
_ops(HARDTANH, _STEP, rule="hardtanh", self=DERIVATIVE)
_ops("Threshold ThresholdBackward1 Hardsigmoid Hardshrink Softshrink", _STEP, self=DERIVATIVE)
_ops("PreluKernel", _STEP, self=DERIVATIVE, weight=STATISTIC)
_ops("RreluWithNoise RreluWithNoiseFunctional", _STEP, self=DERIVATIVE, noise=FRAGILE)
_ops("RreluWithNoiseBackward1", _STEP, result=DERIVATIVE, noise=FRAGILE)
RELU = "ReluBackward0"
_RELU = _ops(RELU, "only where it is above zero: a plane of its own, exact", flow=0.0, result=SUPPORT)
# What these make holds exact zeros and little else that is special: the codec of ReLU's outputs suits it.
RELU_LIKE = frozenset({RELU, "ThresholdBackward0", HARDTANH})

# -- attention

_FUSED = "exp(q k - lse) of decoded q and k needs an lse of the same: it is recomputed with the output"
_FLASH_CPU = _ops(
    "ScaledDotProductFlashAttentionForCpu",
    _FUSED,
    flow=2.0,
    query=ATTENTION_INPUT,
    key=ATTENTION_INPUT,
    value=ATTENTION_INPUT,
    attn_mask=MASK,
    output=Use.RECOMPUTED,
    logsumexp=Use.RECOMPUTED,
)
_FLASH = _ops(
    "ScaledDotProductFlashAttention",
    _FUSED,
    rest=INDEX,
    flow=2.0,
    query=ATTENTION_INPUT,
    key=ATTENTION_INPUT,
    value=ATTENTION_INPUT,
    output=Use.RECOMPUTED,
    logsumexp=Use.RECOMPUTED,
)
_EFFICIENT = _ops(
    "ScaledDotProductEfficientAttention",
    _FUSED,
    rest=INDEX,
    flow=2.0,
    query=ATTENTION_INPUT,
    key=ATTENTION_INPUT,
    value=ATTENTION_INPUT,
    attn_bias=MASK,
    output=Use.RECOMPUTED,
    log_sumexp=Use.RECOMPUTED,
)
(FLASH_CPU,), (FLASH,), (EFFICIENT,) = _FLASH_CPU, _FLASH, _EFFICIENT
ATTENTION = _FLASH_CPU | _FLASH | _EFFICIENT
_ops(
    "CudnnAttention EfficientAttention FlashAttention ScaledDotProductCudnnAttention "
    "ScaledDotProductFusedAttentionOverrideable",
    "attention that DAF does not run again: its saves fit each other only as they are",
    rest=FRAGILE,
    flow=2.0,
)


def is_attention(name: str) -> bool:
    """Whether a node is fused attention, of torch or of any library, by its name."""
    return "Attention" in name or "Attn" in name


# -- probabilities

SOFTMAX = "SoftmaxBackward0"
_ops(
    SOFTMAX,
    "p (g - sum(g p)): noise in p is bounded by g, which a product keeps small and a logarithm above does not",
    rule="saved_result",
    result=Use.SOFTMAX,
)
SOFTMAXES = (
    frozenset({SOFTMAX})
    | _ops("SafeSoftmax", "as softmax", result=Use.SOFTMAX)
    | _ops("MaskedSoftmax", "as softmax", result=Use.SOFTMAX, mask=MASK)
    | _ops(
        "Sigmoid Tanh",
        "1 - y^2 of a saturated unit is nothing; a product keeps the gradient small, a logarithm divides by just that",
        result=Use.SOFTMAX,
    )
)
LOG_SOFTMAX = "LogSoftmaxBackward0"
LOGARITHMS = _ops(
    LOG_SOFTMAX,
    "g - exp(result) sum(g): near convergence what is left is p - 1, less than an absolute error of p",
    result=Use.LOGPROB,
)

# -- where no value is read

_ops(
    "AdaptiveAvgPool2D AdaptiveAvgPool3D AvgPool2D AvgPool3D MkldnnAdaptiveAvgPool2D ReflectionPad1D ReflectionPad2D "
    "ReflectionPad3D ReplicationPad1D ReplicationPad2D ReplicationPad3D FftR2C ToMkldnn",
    "the backward of a linear map: it asks for sizes",
    flow=0.0,
    self=SHAPE_ONLY,
)
MAX_POOL = "MaxPool2DWithIndicesBackward0"
_ops(
    f"{MAX_POOL} MaxPool3DWithIndices AdaptiveMaxPool2D AdaptiveMaxPool3D FractionalMaxPool2D FractionalMaxPool3D",
    "the gradient goes to the places in result1",
    flow=0.0,
    self=SHAPE_ONLY,
    result1=INDEX,
)
_ops("Cummax Cummin", "the gradient goes to the places in indices", flow=0.0, self=SHAPE_ONLY, indices=INDEX)
_ops("Gather Take", "the gradient goes to the places in index", flow=0.0, self=SHAPE_ONLY, index=INDEX)
_ops("IndexAdd IndexCopy Put", "the gradient comes from the places in index", source=SHAPE_ONLY, index=INDEX)
_ops("MaskedSelect", "the gradient goes to the places in mask", flow=0.0, self=SHAPE_ONLY, mask=MASK)
_ops("Complex", "real and imaginary part of the gradient", real=SHAPE_ONLY, imag=SHAPE_ONLY)
NLL_LOSS = "NllLossBackward0"
_ops(
    f"{NLL_LOSS} NllLoss2D",
    "one element a row gets -weight / total_weight",
    flow=0.0,
    self=SHAPE_ONLY,
    target=INDEX,
    weight=STATISTIC,
    total_weight=STATISTIC,
)

# -- indices and masks

EMBEDDING = "EmbeddingBackward0"
_ops(f"{EMBEDDING} EmbeddingDenseBackwardBackward0", "rows to add to", flow=0.0, indices=INDEX)
_ops(
    "EmbeddingBag",
    "rows to add to; the samples' own weights are factors",
    rest=INDEX,
    weight=LINEAR,
    per_sample_weights=LINEAR,
)
_ops(
    "Index IndexPut IndexPutImpl UnsafeIndex UnsafeIndexPut Kthvalue Max MedianBackward1 Min Mode NanmedianBackward1 "
    "Sort SortBackward1 Topk MaxUnpool2D MaxUnpool3D AdaptiveMaxPool2DBackwardBackward0 "
    "AdaptiveMaxPool3DBackwardBackward0 FractionalMaxPool2DBackwardBackward0 FractionalMaxPool3DBackwardBackward0 "
    "MaxPool2DWithIndicesBackwardBackward0 MaxPool3DWithIndicesBackwardBackward0",
    "places that the gradient goes to",
    indices=INDEX,
)
_ops(
    "IndexFill IndexFillBackward1 IndexSelect ScatterAdd Scatter ScatterBackward1",
    "places that the gradient goes to",
    index=INDEX,
)
_ops("UnsafeMaskedIndex UnsafeMaskedIndexPutAccumulate", "places that the gradient goes to", indices=INDEX, mask=MASK)
_ops("PackPaddedSequence", "lengths of sequences", result1=INDEX)
MASKED_FILL, WHERE = "MaskedFillBackward0", "WhereBackward0"
_ops(
    f"{MASKED_FILL} MaskedFillBackward1 MaskedScatter MaskedScatterBackwardBackward0 SparseMask "
    "FakeQuantizePerChannelAffineCachemask FakeQuantizePerTensorAffineCachemask "
    "FakeQuantizePerTensorAffineCachemaskTensorQparams FusedMovingAvgObsFqHelper",
    "where the gradient passes",
    mask=MASK,
)
_ops(WHERE, "where the gradient passes", condition=MASK)
DROPOUT = "NativeDropoutBackward0"
_ops(DROPOUT, "where the gradient passes", rule="dropout", result1=MASK)
_ops("FusedDropout", "where the gradient passes", result1=MASK)
_ops("NativeDropoutBackwardBackward0", "linear in the gradient", grad_output=LINEAR, mask=MASK)

# -- fragile: the op divides by what it saved, or the true gradient is a small difference

LOG = "LogBackward0"
ROOTS = _ops("Sqrt Rsqrt Reciprocal", "divides by the result, or takes its power: a small one explodes", rest=FRAGILE)
LOGS = _ops(f"{LOG} Log10 Log1P Log2 Logit", "divides by what it saved", rest=FRAGILE)
_DIVISIONS = _ops(
    "Div DivBackward2 Addcdiv",
    "divides by the denominator, whose own gradient holds the numerator over its square",
    rest=FRAGILE,
)
POW = "PowBackward0"
_POWERS = _ops(
    f"{POW} PowBackward1 PowBackward2",
    "a power of what it saved: steep, or infinite at zero; a square is linear where no root lies above",
    rest=FRAGILE,
)
# Their gradients may be as large as their inputs are small.
AMPLIFIERS = ROOTS | LOGS | _DIVISIONS | _POWERS
_ops("Exp Exp2 Expm1 Cosh Sinh Tan Ldexp", "as steep as it is high: only a relative error is harmless", rest=FRAGILE)
_TAIL = "its tail is an exponential, under a logarithm or a quotient more often than not"
_ops("Softplus", _TAIL, rest=FRAGILE, rule="softplus")
_ops("LogSigmoid", _TAIL, rest=FRAGILE)
_ops("Erf Erfc Atan Asinh", "its tails are flat, and what lies above may divide by that", rest=FRAGILE)
_ops("Sin Cos Sinc Polar", "noise of half a period is the opposite angle", rest=FRAGILE)
_ops("Acos Acosh Asin Atanh Erfinv", "a root or quotient that is infinite at the ends", rest=FRAGILE)
_ops("Atan2 Hypot Angle Sgn Copysign CopysignBackward1", "divides by a length", rest=FRAGILE)
_ops(
    "MseLoss SmoothL1Loss HuberLoss BinaryCrossEntropy BinaryCrossEntropyWithLogits SoftMarginLoss MultiMarginLoss "
    "MultilabelMarginLoss",
    "a loss: the gradient is a difference that training makes small",
    rest=FRAGILE,
)
_ops(
    "CtcLoss CtcLossBackward1 CudnnCtcLoss CudnnCtcLossBackward1 MiopenCtcLoss MiopenCtcLossBackward1",
    "sums of paths, in logarithms",
    rest=FRAGILE,
)
_ops(
    "Logsumexp Logcumsumexp Logaddexp Logaddexp2",
    "exp(self - result): noise in one and not in the other is a factor",
    rest=FRAGILE,
)
_ops("Xlogy XlogyBackward1 XlogyBackward2 SpecialEntr", "a quotient and a logarithm", rest=FRAGILE)
_ops(
    "SpecialXlog1Py SpecialXlog1PyBackward1 SpecialXlog1PyBackward2 SpecialLogNdtr SpecialNdtri SpecialErfcx",
    "a quotient and a logarithm",
    rest=FRAGILE,
)
_ops(
    "Digamma Lgamma Mvlgamma Polygamma PolygammaBackward1 Igamma Igammac StandardGamma I0 SpecialI0E SpecialI1 "
    "SpecialI1E SpecialZeta SpecialZetaBackward1",
    "a special function, steep near its poles",
    rest=FRAGILE,
)
_ops(
    "Cdist EuclideanDist Pdist Dist LinalgVectorNorm Norm NormBackward1 NormBackward2 NormBackward3 Renorm ForeachNorm "
    "WeightNormInterface",
    "a difference or vector over its length",
    rest=FRAGILE,
)
_ops("Var VarMean Std StdMean", "a spread, mostly under a root: a norm written out", rest=FRAGILE)
_ops("Prod ProdBackward1 Cumprod", "divides the product by each factor", rest=FRAGILE)
_ops(
    "Abs Amax Amin Aminmax MaxBackward1 MinBackward1 Median Nanmedian Maximum Minimum Fmax Fmin Clamp ClampBackward1 "
    "ClampMax ClampMaxBackward1 ClampMin ClampMinBackward1 Nextafter NanToNum Nansum ForeachMaximum "
    "ForeachMaximumBackward1 ForeachMinimum ForeachMinimumBackward1 MaxPool2D MkldnnMaxPool2D MkldnnMaxPool3D",
    "compares: noise gives the gradient to another, or lets through what was shut out",
    rest=FRAGILE,
)
_ops("FmodBackward1 RemainderBackward1 Frexp", "rounds a quotient", rest=FRAGILE)
_ops(
    "ForeachDiv ForeachPow ForeachPowBackward1 ForeachPowBackward2",
    "a quotient or a power",
    rest=FRAGILE,
)
_ops(
    "IndexReduce ScatterReduce SegmentReduce SparseMmReduceImpl", "compares or divides, as `reduce` says", rest=FRAGILE
)
_ops(
    "FakeQuantizeLearnablePerChannelAffine FakeQuantizeLearnablePerTensorAffine",
    "rounds a quotient, and compares",
    rest=FRAGILE,
)

# Ops whose backward solves with what they saved, or looks up by it: a little noise there is another answer. What they
# make is as fragile: the next op of such a chain mostly does the same.
SOLVERS = _ops(
    "Cholesky CholeskyInverse CholeskySolve LinalgCholeskyEx LinalgDet LinalgEig LinalgEigh LinalgHouseholderProduct "
    "LinalgInvEx LinalgLstsq LinalgLu LinalgLuFactorEx LinalgLuSolve LinalgMatrixExp LinalgPinv LinalgQr LinalgSlogdet "
    "LinalgSolveEx LinalgSolveTriangular LinalgSvd LuUnpack Ormqr TriangularSolve",
    "solves with what it saved",
    rest=FRAGILE,
) | _ops(
    "GridSampler2D GridSampler2DCpuFallback GridSampler3D CudnnGridSampler",
    "looks up by the grid, whose gradient is a difference of neighbours",
    rest=FRAGILE,
)

# -- a library's own

_ops(
    "MkldnnRnnLayer",
    "outputs and oneDNN's workspace are recomputed from the input: noise in it would be in every later state",
    rest=WORKSPACE,
    input=FRAGILE,
    result0=Use.RECOMPUTED,
    result1=Use.RECOMPUTED,
    result2=Use.RECOMPUTED,
    result3=Use.RECOMPUTED,
)
LSTM = "MkldnnRnnLayerBackward0"
_ops(
    "CudnnRnn MiopenRnn LstmMps ThnnFusedGruCell ThnnFusedLstmCell",
    "a workspace, and what fits it",
    rest=WORKSPACE,
)
_ops(
    "SparseAddmm SparseCompressedTensor SparseCooTensorWithDimsAndTensors SparseLogSoftmax SparseSampledAddmm "
    "SparseSoftmax SparseSparseMatmul SparseSum ToDense Values ValuesBackward0_copy",
    "sparse: values and the places that they belong to",
    rest=WORKSPACE,
)
_ops(
    "NestedFromPadded NestedGetValues NestedGetValuesBackward0_copy NestedTensorFromTensorList ToPaddedTensor "
    "ChunkBackwardAutogradNestedTensor0 MeanBackwardAutogradNestedTensor0 SelectBackwardAutogradNestedTensor0 "
    "SelectBackwardAutogradNestedTensor0_copy SplitWithSizesBackwardAutogradNestedTensor0 "
    "SplitWithSizesBackwardAutogradNestedTensor0_copy SumBackwardAutogradNestedTensor0 "
    "SumBackwardAutogradNestedTensor1 UnbindBackwardAutogradNestedTensor0 UnbindBackwardAutogradNestedTensor0_copy "
    "ValuesBackwardAutogradNestedTensor0 ValuesBackwardAutogradNestedTensor0_copy ViewBackwardAutogradNestedTensor0 "
    "ViewBackwardAutogradNestedTensor0_copy",
    "nested tensors: values and the lengths of their rows",
    rest=WORKSPACE,
)
_ops(
    "TestAutogradMultipleDispatchView TestAutogradMultipleDispatchViewBackward0_copy "
    "TestAutogradMultipleDispatchViewBackwardAutogradCUDA0 TestAutogradMultipleDispatchViewBackwardAutogradCUDA0_copy",
    "torch's own tests use it",
    rest=UNKNOWN,
)

# -- gradients of gradients that are no products

_ops(
    "BatchNormBackwardBackward0 BinaryCrossEntropyBackwardBackward0 CudnnBatchNormBackwardBackward0 "
    "CudnnGridSamplerBackwardBackward0 EluBackwardBackward0 GeluBackwardBackward0 GluBackwardBackward0 "
    "GridSampler2DBackwardBackward0 GridSampler2DCpuFallbackBackwardBackward0 GridSampler3DBackwardBackward0 "
    "HardshrinkBackwardBackward0 HardswishBackwardBackward0 HardtanhBackwardBackward0 HuberLossBackwardBackward0 "
    "LeakyReluBackwardBackward0 LogSigmoidBackwardBackward0 LogSoftmaxBackwardDataBackward0 "
    "MiopenBatchNormBackwardBackward0 MseLossBackwardBackward0 NativeBatchNormBackwardBackward0 "
    "NativeLayerNormBackwardBackward0 NllLoss2DBackwardBackward0 NllLossBackwardBackward0 "
    "PreluKernelBackwardBackward0 RreluWithNoiseBackwardBackward0 SigmoidBackwardBackward0 "
    "SmoothL1LossBackwardBackward0 SoftMarginLossBackwardBackward0 SoftmaxBackwardDataBackward0 "
    "SoftplusBackwardBackward0 SoftshrinkBackwardBackward0 TanhBackwardBackward0 ThresholdBackwardBackward0",
    "a second derivative: what noise does to it is not known",
    rest=FRAGILE,
)

# -- other facts about nodes

ADD = "AddBackward0"
ACCUMULATE = "torch::autograd::AccumulateGrad"
CAST = "ToCopyBackward0"
# Nodes that only read one tensor again, or cast it: a chain of these over a leaf is still that leaf.
SAME_TENSOR = frozenset(
    f"{name}Backward0"
    for name in (
        *("T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Alias", "AsStrided", "Detach"),
        *("ToCopy", "Clone", "Expand", "Select", "Slice", "Split", "Chunk", "Unsqueeze", "Squeeze"),
    )
)
# The same, and what makes a weight of parameters alone: the weight is as large as they are, and no activation.
OF_PARAMETERS = SAME_TENSOR | {"WeightNormInterfaceBackward0"}
# Nodes whose gradient is the one that they get, spread, summed or scaled.
SPREADING = SAME_TENSOR | frozenset(
    {
        "MeanBackward0",
        "MeanBackward1",
        "SumBackward0",
        "SumBackward1",
        ADD,
        "SubBackward0",
        "RsubBackward1",
        "NegBackward0",
    }
)
# Ops that save their own output: what flows on from them is the gradient after them, not the one at the tensor saved.
SAVES_OUTPUT = frozenset(
    f"{name}Backward0" for name in ("Softmax", "LogSoftmax", "Tanh", "Sigmoid", "Exp", "Sqrt", "Rsqrt", "Reciprocal")
)
# Whose outputs often hold infinities, which no lossy codec may touch.
OFTEN_INFINITE = frozenset({LOG_SOFTMAX, MASKED_FILL, WHERE, LOG})


def flow_of(name: str) -> float:
    op = OPS.get(name)
    return DEFAULT_FLOW if op is None else op.flow


def rule_of(name: str) -> str:
    """The name of the rule that recomputes a node's output; empty where there is none."""
    if name == CAST:
        return "cast"
    op = OPS.get(name)
    return "" if op is None else op.rule
