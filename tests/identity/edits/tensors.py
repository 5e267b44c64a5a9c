"""Edits of tensors: content, dtype, layout, sparse and quantized values, and what torch hangs on them."""

from tests.identity.edits.edit import Edit

_SUBCLASS = """
    class Tagged(torch.Tensor):
        def twice(self):
            return float(self.as_subclass(torch.Tensor)[0]) * 2


    def tagged(tag):
        found = torch.ones(2).as_subclass(Tagged)
        found.tag = tag
        return found
"""
_SPARSE = "torch.sparse_coo_tensor([[0, 2]], [1.0, {}], (2000,)).coalesce()"
_CSR = "torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, {}])"
_QUANTIZED = "torch.quantize_per_tensor(torch.arange(3.0), {}, 0, torch.quint8)"

EDITS = [
    Edit("tensor content", "torch.tensor([1.0, 3.0])", "torch.tensor([1.0, 4.0])", "v[1]", change="v[1] = 4",
         layout=True),
    Edit("tensor dtype", "torch.tensor([1.0])", "torch.tensor([1.0], dtype=torch.float64)", "v.element_size()"),
    Edit("bfloat16 tensor", "torch.tensor([1.0], dtype=torch.bfloat16)", "torch.tensor([1.0], dtype=torch.float16)",
         "torch.finfo(v.dtype).bits + torch.finfo(v.dtype).eps"),
    Edit("content of a bfloat16 tensor", "torch.tensor([1.0], dtype=torch.bfloat16)",
         "torch.tensor([2.0], dtype=torch.bfloat16)", "v[0]", change="v[0] = 2", layout=True),
    Edit("content of a float8 tensor", "torch.tensor([1.0]).to(torch.float8_e4m3fn)",
         "torch.tensor([2.0]).to(torch.float8_e4m3fn)", "v.float()[0]", layout=True),
    Edit("tensor shape", "torch.zeros(2, 3)", "torch.zeros(3, 2)", "v.shape[0]"),
    Edit("tensor strides", "torch.zeros(2, 3)", "torch.zeros(3, 2).t()", "v.stride()[0]"),
    Edit("memory format", "torch.zeros(1, 2, 2, 2)", "torch.zeros(1, 2, 2, 2).to(memory_format=torch.channels_last)",
         "v.stride()[1]"),
    Edit("offset of a tensor", "torch.arange(4.0)[1:3]", "torch.arange(4.0)[2:]", "v[0]", layout=True),
    Edit("expanded tensor", "torch.zeros(1).expand(3)", "torch.zeros(3)", "v.stride()[0]"),
    Edit("requires_grad", "torch.zeros(2)", "torch.zeros(2, requires_grad=True)", "v.requires_grad",
         change="v.requires_grad = True"),
    Edit("conjugate bit", "torch.tensor([1 + 2j])", "torch.tensor([1 + 2j]).conj()", "v.is_conj()"),
    Edit("negative zero in a tensor", "torch.tensor([0.0])", "torch.tensor([-0.0])", "torch.signbit(v)[0]",
         layout=True),
    Edit("large tensor's middle", "torch.zeros(100_000)", "changed()", "v[50_000]", change="v[50_000] = 3", layout=True,
         setup="def changed():\n    found = torch.zeros(100_000)\n    found[50_000] = 3\n    return found\n"),
    Edit("sparse values", _SPARSE.format(3.0), _SPARSE.format(4.0), "v.values()[1]", layout=True),
    Edit("sparse values beyond what is printed", "many(3.0)", "many(4.0)", "v.values()[1000]", layout=True,
         setup="""
             def many(value):
                 values = torch.zeros(2000)
                 values[1000] = value
                 return torch.sparse_coo_tensor(torch.arange(2000)[None], values, (2000,)).coalesce()
         """),
    Edit("sparse positions", _SPARSE.format(3.0), _SPARSE.format(3.0).replace("0, 2", "0, 3"), "v.indices()[0, 1]",
         layout=True),
    Edit("coalesced", "torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,)).coalesce()",
         "torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,))", "v.is_coalesced()"),
    Edit("values of a CSR tensor", _CSR.format(3.0), _CSR.format(4.0), "v.values()[1]", layout=True),
    Edit("sparse for dense", "torch.eye(2)", "torch.eye(2).to_sparse()", "v.is_sparse"),
    Edit("scale of a quantized tensor", _QUANTIZED.format(0.1), _QUANTIZED.format(0.2), "v.q_scale()"),
    Edit("content of a quantized tensor", _QUANTIZED.format(0.1), _QUANTIZED.format(0.1).replace("3.0)", "3.0) + 1"),
         "v.int_repr()[0]", layout=True),
    Edit("scale per channel", "channels(0.1)", "channels(0.2)", "v.q_per_channel_scales()[1]",
         setup="""
             def channels(scale):
                 scales = torch.tensor([0.1, scale])
                 return torch.quantize_per_channel(torch.ones(2, 2), scales, torch.zeros(2), 0, torch.qint8)
         """),
    Edit("nested tensor", "torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])",
         "torch.nested.nested_tensor([torch.ones(1), torch.zeros(2)])", "v.unbind()[1][0]", layout=True,
         refusable=True),
    Edit("attribute of a tensor", "made(3)", "made(4)", "v.tag", change="v.tag = 4",
         setup="def made(tag):\n    found = torch.ones(2)\n    found.tag = tag\n    return found\n"),
    Edit("attribute of a tensor subclass", "tagged(3)", "tagged(4)", "v.tag", _SUBCLASS, change="v.tag = 4"),
    Edit("method of a tensor subclass", "tagged(3)", None, "v.twice()", _SUBCLASS, _SUBCLASS.replace("* 2", "* 3"),
         change="type(v).twice = lambda self: 6"),
    Edit("tensor subclass for tensor", "torch.ones(2)", "tagged(0)", "hasattr(v, 'tag')", _SUBCLASS),
    Edit("hook of a tensor", "made(False)", "made(True)", "len(v._backward_hooks or {})", refusable=True,
         setup="""
             def made(hooked):
                 found = torch.ones(1, requires_grad=True)
                 if hooked:
                     found.register_hook(lambda grad: grad * 2)
                 return found
         """),
    Edit("gradient", "made(3.0)", "made(4.0)", "v.grad[0]", layout=True, refusable=True,
         setup="def made(n):\n    found = torch.ones(1)\n    found.grad = torch.tensor([n])\n    return found\n"),
    Edit("attribute of a tensor with an underscore", "made(3)", "made(4)", "v._tag", change="v._tag = 4", layout=True,
         setup="def made(tag):\n    found = torch.ones(2)\n    found._tag = tag\n    return found\n"),
    Edit("requires_grad of a parameter", "[nn.Parameter(torch.ones(1))]",  # in a list, so that no module has it
         "[nn.Parameter(torch.ones(1), requires_grad=False)]", "v[0].requires_grad",
         change="v[0].requires_grad_(False)"),
    Edit("gradient of a parameter", "made(3.0)", "made(4.0)", "v.grad[0]", layout=True, refusable=True,
         change="v.grad = torch.tensor([4.0])",
         setup="""
             def made(n):
                 found = nn.Parameter(torch.ones(1))
                 found.grad = torch.tensor([n])
                 return found
         """),
    Edit("hook of a parameter", "made(False)", "made(True)", "grad_of(v)", refusable=True,
         change="v.register_hook(lambda grad: grad * 2)",
         setup="""
             def made(hooked):
                 found = nn.Parameter(torch.ones(1))
                 if hooked:
                     found.register_hook(lambda grad: grad * 2)
                 return found

             def grad_of(v):
                 with torch.enable_grad():
                     return torch.autograd.grad((v * 3).sum(), v)[0][0]
         """),
    Edit("leaf", "(torch.ones(1, requires_grad=True) * 1)", "torch.ones(1, requires_grad=True)", "v.is_leaf"),
    Edit("attribute of a parameter", "made(3)", "made(4)", "getattr(v, '_no_decay', 0)", change="v._no_decay = 5",
         layout=True,
         setup="""
             def made(tag):
                 found = nn.Parameter(torch.ones(1), requires_grad=False)
                 if tag == 4:
                     found._no_decay = tag
                 return found
         """),
    Edit("list of tensors", "[torch.zeros(1), torch.zeros(1)]", "[torch.zeros(1), torch.ones(1)]", "v[1][0]",
         change="v[1][0] = 1", layout=True),
    Edit("tensors that share memory", "shared(True)", "shared(False)", "same(v)", refusable=True,
         setup="""
             def shared(yes):
                 found = torch.zeros(4)
                 return [found, found[1:] if yes else torch.zeros(3)]

             def same(v):
                 return v[0].untyped_storage().data_ptr() == v[1].untyped_storage().data_ptr()
         """),
    Edit("tensor for array", "np.ones(2)", "torch.ones(2, dtype=torch.float64)", "isinstance(v, np.ndarray)"),
    Edit("parameter", "nn.Parameter(torch.tensor([3.0]), requires_grad=False)",
         "nn.Parameter(torch.tensor([4.0]), requires_grad=False)", "v[0]", change="v.data.fill_(4)", layout=True),
    Edit("parameter for tensor", "torch.ones(1)", "nn.Parameter(torch.ones(1), requires_grad=False)",
         "isinstance(v, nn.Parameter)"),
    Edit("torch dtype", "torch.float32", "torch.float64", "torch.finfo(v).bits"),
    Edit("torch device", "torch.device('cpu')", "torch.device('meta')", "v.type == 'cpu'"),
    Edit("torch size", "torch.Size([2, 3])", "torch.Size([2, 4])", "v[1]"),
    Edit("size for tuple", "(2, 3)", "torch.Size([2, 3])", "type(v) is tuple"),
    Edit("torch layout", "torch.strided", "torch.sparse_coo", "v is torch.strided"),
    Edit("torch memory format", "torch.contiguous_format", "torch.channels_last", "v is torch.channels_last"),
    Edit("torch generator", "torch.Generator().manual_seed(3)", "torch.Generator().manual_seed(4)",
         "torch.rand(1, generator=v.clone_state())[0]", change="v.manual_seed(4)"),
    Edit("torch function", "torch.sin", "torch.cos", "v(torch.ones(1))[0]"),
    Edit("function of torch.nn.functional", "nn.functional.relu", "nn.functional.gelu", "v(torch.ones(1))[0]"),
    Edit("operator of torch", "torch.ops.aten.sin", "torch.ops.aten.cos", "v(torch.ones(1))[0]"),
    Edit("overload of an operator", "torch.ops.aten.add.Tensor", "torch.ops.aten.sub.Tensor",
         "v(torch.ones(1), torch.ones(1))[0]"),
    Edit("partial of a torch function", "functools.partial(torch.clamp, max=3)",
         "functools.partial(torch.clamp, max=4)",
         "v(torch.ones(1) * 9)[0]"),
    Edit("distribution", "torch.distributions.Normal(3.0, 1.0)", "torch.distributions.Normal(4.0, 1.0)", "v.mean",
         layout=True),
    Edit("distribution of a tensor", "torch.distributions.Categorical(torch.tensor([0.5, 0.5]))",
         "torch.distributions.Categorical(torch.tensor([0.25, 0.75]))", "v.probs[0]", layout=True),
    Edit("transform of a distribution", "made(2.0)", "made(3.0)", "v.transforms[0].scale",
         setup="""
             from torch.distributions import AffineTransform, Normal, TransformedDistribution

             def made(scale):
                 return TransformedDistribution(Normal(0.0, 1.0), [AffineTransform(0.0, scale)])
         """),
    Edit("packed sequence", "packed([2, 1])", "packed([2, 2])", "v.data.shape[0]",
         setup="""
             def packed(lengths):
                 return nn.utils.rnn.pack_padded_sequence(torch.ones(2, 2), lengths)
         """),
    Edit("function that vmap made", "torch.func.vmap(lambda x: x + 1)", "torch.func.vmap(lambda x: x + 2)",
         "v(torch.ones(1))[0]", refusable=True),
    Edit("autograd function", "F", None, "v.apply(torch.ones(1))[0]",
         "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x + 1\n",
         "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x + 2\n"),
    Edit("script function", "torch.jit.script(f)", None, "v(torch.ones(1))[0]",
         "def f(x):\n    return x + 1\n", "def f(x):\n    return x + 2\n"),
    Edit("data set", "TensorDataset(torch.tensor([3.0]))", "TensorDataset(torch.tensor([4.0]))", "v[0][0]",
         "from torch.utils.data import TensorDataset", layout=True),
    Edit("random split", "Subset(range(9), [3])", "Subset(range(9), [4])", "v[0]",
         "from torch.utils.data import Subset",
         change="v.indices[0] = 4"),
]  # fmt: skip
