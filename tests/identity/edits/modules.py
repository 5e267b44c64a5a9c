"""Edits of modules as values: weights, settings, children, hooks, and graphs that torch makes of them."""

from tests.identity.edits.edit import Edit

_HEAD = """
    import torch.nn.utils.parametrize
    import torch.nn.utils.prune


    def filled(module, number=0.5):
        with torch.no_grad():
            for one in [*module.parameters(), *module.buffers()]:
                if one.dtype.is_floating_point:
                    one.fill_(number)
        return module.requires_grad_(False).eval()


    def read(module, size=3):
        with torch.no_grad():
            found = module(torch.arange(2.0 * size).reshape(2, size) - 1)
        found = found[0] if isinstance(found, tuple) else found
        return (found.double() * torch.arange(1.0, found.numel() + 1).reshape(found.shape)).sum()


    class Net(nn.Module):
        def __init__(self, n=1.0):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.n = n
            self.setup()

        def setup(self):
            self.late = 2.0

        def helper(self, x):
            return x * self.late

        def forward(self, x):
            return self.helper(self.linear(x)) + self.n


    def net(n=1.0):
        return filled(Net(n))
"""


def _swap(name: str, value: str, before: str, after: str, reading: str = "read(v)", **options: object) -> Edit:
    assert before in _HEAD, name
    return Edit(name, value, None, reading, _HEAD, _HEAD.replace(before, after), **options)  # type: ignore[arg-type]


def _value(name: str, old: str, new: str, reading: str = "read(v)", setup: str = "", **options: object) -> Edit:
    return Edit(name, old, new, reading, _HEAD + setup, **options)  # type: ignore[arg-type]


_HOOKS = """

    class Hook:
        def __init__(self, n):
            self.n = n

        def after(self, module, args, output):
            return output * self.n


    def double(module, args, output):
        return output * 2


    def triple(module, args, output):
        return output * 3


    def times(n, module, args, output):
        return output * n


    def before(module, args):
        return (args[0] + 1,)


    def hooked(hook, kind="register_forward_hook"):
        found = net()
        if hook is not None:
            getattr(found, kind)(hook)
        return found
"""
_PLAIN = """

    class Listed(nn.Module):
        def __init__(self, *modules, **named):
            super().__init__()
            self.held = list(modules)
            vars(self).update(named)

        def forward(self, x):
            for one in self.held:
                x = one(x)
            return x


    class Called(nn.Module):
        def __init__(self, call):
            super().__init__()
            self.call = call

        def forward(self, x):
            return self.call(x)


    BACKBONE = net()


    class Outside(nn.Module):
        def forward(self, x):
            return BACKBONE(x)


    class Scaled(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def forward(self, x):
            return x * self.scale
"""
_PARAMETRIZED = """

    class Half(nn.Module):
        def __init__(self, by=2.0):
            super().__init__()
            self.by = by

        def forward(self, weight):
            return weight / self.by


    def parametrized(by):
        found = nn.Linear(3, 2)
        nn.utils.parametrize.register_parametrization(found, "weight", Half(by))
        return filled(found)


    def pruned(yes):
        found = nn.Linear(3, 2)
        if yes:
            nn.utils.prune.custom_from_mask(found, "weight", torch.tensor([[1.0, 0, 1], [1, 1, 1]]))
        else:
            nn.utils.prune.custom_from_mask(found, "weight", torch.tensor([[1.0, 1, 1], [1, 1, 1]]))
        return found.requires_grad_(False)
"""
_JIT = """

    class Scripted(nn.Module):
        def __init__(self, n: float):
            super().__init__()
            self.n = n

        def forward(self, x):
            return x * self.n + 1.0


    def traced(number):
        return torch.jit.trace(filled(nn.Linear(3, 2), number), torch.zeros(2, 3))


    def symbolic(n):
        return torch.fx.symbolic_trace(Scripted(n).eval())


    def edited(name):
        found = symbolic(2.0)
        for node in found.graph.nodes:
            if node.op == "call_function" and node.target is operator.add:
                node.target = getattr(operator, name)
        found.recompile()
        return found


    def exported(n):
        return torch.export.export(Scripted(n).eval(), (torch.zeros(2, 3),)).module()


    def quantized(number):
        torch.backends.quantized.engine = "fbgemm"
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(filled(nn.Linear(3, 2), number)), {nn.Linear})


    def converted(number):
        torch.backends.quantized.engine = "fbgemm"
        return torch.ao.nn.quantized.Linear.from_reference(reference(number), 0.1, 0)


    def reference(number):
        found = torch.ao.nn.quantized.reference.Linear(3, 2)
        return filled(found, number)
"""

EDITS = [
    _value("weight", "filled(nn.Linear(3, 2), 0.5)", "filled(nn.Linear(3, 2), 0.25)", layout=True,
           change="with torch.no_grad(): v.weight.fill_(0.25)"),
    _value("weight written past autograd", "filled(nn.Linear(3, 2))", "filled(nn.Linear(3, 2), 0.25)", layout=True,
           change="v.weight.data.fill_(0.25)"),
    _value("weight written by NumPy", "filled(nn.Linear(3, 2))", "filled(nn.Linear(3, 2), 0.25)", layout=True,
           change="v.weight.numpy()[:] = 0.25"),
    _value("replaced data of a weight", "filled(nn.Linear(3, 2))", "filled(nn.Linear(3, 2), 0.25)", layout=True,
           change="v.weight.data = torch.full((2, 3), 0.25)"),
    _value("loaded state", "filled(nn.Linear(3, 2))", "filled(nn.Linear(3, 2), 0.25)", layout=True,
           change="v.load_state_dict(filled(nn.Linear(3, 2), 0.25).state_dict())"),
    _value("replaced parameter", "filled(nn.Linear(3, 2))", "filled(nn.Linear(3, 2), 0.25)", layout=True,
           change="v.weight = nn.Parameter(torch.full((2, 3), 0.25), requires_grad=False)"),
    _value("bias", "filled(nn.Linear(3, 2))", "filled(nn.Linear(3, 2, bias=False))", change="v.bias = None"),
    _value("dtype of a module", "filled(nn.Linear(3, 2))", "filled(nn.Linear(3, 2)).half()", "v.weight.element_size()",
           change="v.half()"),
    _value("buffer", "filled(nn.BatchNorm1d(3), 0.5)", "filled(nn.BatchNorm1d(3), 0.25)", layout=True,
           change="v.running_mean.fill_(0.25)"),
    _value("buffer that is not saved", "buffered(3.0)", "buffered(4.0)", "v.b[0]", """

    def buffered(n):
        found = nn.Module()
        found.register_buffer("b", torch.tensor([n]), persistent=False)
        return found
""", layout=True, change="v.b = torch.tensor([4.0])"),
    _value("activation", "nn.Sequential(net(), nn.ReLU())", "nn.Sequential(net(), nn.Tanh())",
           change="v[1] = nn.Tanh()"),
    _value("order of children", "nn.Sequential(nn.Sigmoid(), nn.Tanh(), net())",
           "nn.Sequential(nn.Tanh(), nn.Sigmoid(), net())",
           change="v[0], v[1] = v[1], v[0]"),
    _value("added child", "nn.Sequential(net())", "nn.Sequential(net(), nn.ReLU(), nn.Tanh())",
           change="v.append(nn.Tanh())"),
    _value("order of a module list", "nn.ModuleList([nn.ReLU(), nn.Tanh()])", "nn.ModuleList([nn.Tanh(), nn.ReLU()])",
           "v[0](torch.tensor(3.0))", change="v[0] = nn.Tanh()"),
    _value("key of a module dict", "nn.ModuleDict({'a': nn.ReLU()})", "nn.ModuleDict({'b': nn.ReLU()})", "'a' in v"),
    _value("setting of a layer", "filled(nn.LayerNorm(3, eps=1e-5))", "filled(nn.LayerNorm(3, eps=1.0))",
           change="v.eps = 1.0"),
    _value("negative slope", "nn.LeakyReLU(0.1)", "nn.LeakyReLU(0.2)", change="v.negative_slope = 0.2"),
    _value("stride", "filled(nn.Conv1d(1, 1, 2, stride=1))", "filled(nn.Conv1d(1, 1, 2, stride=2))", "conv(v)", """

    def conv(v):
        return v(torch.ones(1, 1, 6)).shape[2]
""", change="v.stride = (2,)"),
    _value("padding mode", "filled(nn.Conv1d(1, 1, 3, padding=1))",
           "filled(nn.Conv1d(1, 1, 3, padding=1, padding_mode='reflect'))", "conv(v)", """

    def conv(v):
        return v(torch.arange(6.0)[None, None])[0, 0, 0]
"""),
    _value("probability of dropout", "nn.Dropout(0.5)", "nn.Dropout(0.25)", "v.p", change="v.p = 0.25"),
    _value("training mode", "filled(nn.BatchNorm1d(3))", "filled(nn.BatchNorm1d(3)).train()", "v.training",
           change="v.train()"),
    _value("attribute of a module", "net(1.0)", "net(2.0)", change="v.n = 2.0"),
    _value("list in a module", "made([1.0])", "made([2.0])", "v.rows[0]", """

    def made(rows):
        found = net()
        found.rows = rows
        return found
""", change="v.rows[0] = 2.0"),
    _swap("attribute that a method called by init sets", "net()", "self.late = 2.0", "self.late = 3.0",
          change="v.late = 3.0"),
    _swap("forward", "net()", "self.helper(self.linear(x)) + self.n", "self.helper(self.linear(x)) - self.n",
          change="type(v).forward = lambda self, x: self.linear(x)"),
    _swap("method beneath forward", "net()", "return x * self.late", "return x / self.late",
          change="type(v).helper = lambda self, x: x / self.late"),
    _value("patched forward", "net()", "patched()", setup="""

    def patched():
        found = net()
        found.forward = lambda x: x * 3
        return found
""", change="v.forward = lambda x: x * 3"),
    _value("patched method", "net()", "patched()", setup="""

    def patched():
        found = net()
        found.helper = lambda x: x * 3
        return found
""", change="v.helper = lambda x: x * 3"),
    # Hooks.
    _value("forward hook", "hooked(None)", "hooked(double)", setup=_HOOKS, change="v.register_forward_hook(double)"),
    _value("another forward hook", "hooked(double)", "hooked(triple)", setup=_HOOKS),
    Edit("code of a forward hook", "hooked(double)", None, "read(v)", _HEAD + _HOOKS,
         _HEAD + _HOOKS.replace("output * 2", "output * 4")),
    _value("hook that is a bound method", "hooked(Hook(2).after)", "hooked(Hook(3).after)", setup=_HOOKS),
    _value("hook that is a partial", "hooked(functools.partial(times, 2))", "hooked(functools.partial(times, 3))",
           setup=_HOOKS),
    _value("forward pre-hook", "hooked(None)", "hooked(before, 'register_forward_pre_hook')", setup=_HOOKS,
           change="v.register_forward_pre_hook(before)"),
    _value("hook of a child", "hooked(None)", "child()", setup=_HOOKS + """

    def child():
        found = net()
        found.linear.register_forward_hook(double)
        return found
""", change="v.linear.register_forward_hook(double)"),
    _value("hook with keywords", "net()", "made()", setup="""

    def made():
        found = net()
        found.register_forward_hook(lambda module, args, named, output: output + 5, with_kwargs=True)
        return found
"""),
    # What torch hangs on modules for training and saving. Compiled calls leave state dicts to torch.
    _value("frozen weight", "net().requires_grad_(True)", "net()", "sum(p.requires_grad for p in v.parameters())",
           change="v.linear.weight.requires_grad_(False)"),
    _value("hook of the backward pass", "hooked(None)", "hooked(back, 'register_full_backward_hook')", "grad_of(v)",
           refusable=True, change="v.register_full_backward_hook(back)", setup=_HOOKS + """

    def back(module, before, after):
        return (before[0] * 2,)


    def grad_of(module):
        with torch.enable_grad():
            x = torch.ones(1, 3, requires_grad=True)
            return torch.autograd.grad(module(x).sum(), x)[0].sum()
"""),
    _value("buffer that is saved", "buffered(True)", "buffered(False)", "len(v.state_dict())", setup="""

    def buffered(persistent):
        found = net()
        found.register_buffer("offset", torch.ones(1), persistent=persistent)
        return found
""", change="v._non_persistent_buffers_set.add('offset')", layout=True),
    _value("hook of the state dict", "net()", "made()", "len(v.state_dict())", setup="""

    def less(module, state, prefix, metadata):
        del state["linear.bias"]


    def made():
        found = net()
        found.register_state_dict_post_hook(less)
        return found
""", change="v.register_state_dict_post_hook(less)", layout=True),
    _value("attribute with an underscore of a module", "made('a')", "made('b')", "len(v._forward_method)", setup="""

    def made(name):
        found = net()
        found._forward_method = name * (1 + (name == 'b'))
        return found
""", change="v._forward_method = 'bb'"),
    # Modules that torch does not list.
    _value("module in a plain list", "Listed(net(1.0))", "Listed(net(2.0))", setup=_PLAIN,
           change="v.held[0] = net(2.0)"),
    _value("weight in a plain list", "Listed(filled(nn.Linear(3, 2), 0.5))", "Listed(filled(nn.Linear(3, 2), 0.25))",
           setup=_PLAIN, layout=True, change="v.held[0].weight.fill_(0.25)"),
    _value("module in a lambda's closure", "Called((lambda m: lambda x: m(x))(net(1.0)))",
           "Called((lambda m: lambda x: m(x))(net(2.0)))", setup=_PLAIN),
    _value("weight in a partial", "Called(functools.partial(filled(nn.Linear(3, 2))))",
           "Called(functools.partial(filled(nn.Linear(3, 2), 0.25)))", setup=_PLAIN, layout=True,
           change="v.call.func.weight.fill_(0.25)"),
    _value("module of a bound method", "Called(net(1.0).forward)", "Called(net(2.0).forward)", setup=_PLAIN,
           change="v.call.__self__.n = 2.0"),
    _value("weight of a bound method's module", "Called(filled(nn.Linear(3, 2)).forward)",
           "Called(filled(nn.Linear(3, 2), 0.25).forward)", setup=_PLAIN, layout=True),
    Edit("module in a global", "Outside()", None, "read(v)", _HEAD + _PLAIN,
         _HEAD + _PLAIN.replace("BACKBONE = net()", "BACKBONE = net(4.0)"), change="BACKBONE.n = 4.0"),
    _value("number for a tensor", "Scaled(2.0)", "Scaled(torch.tensor(3.0))", setup=_PLAIN, change="v.scale = 3.0"),
    _value("configuration of a module", "Scaled(1)", "Scaled(2)", setup=_PLAIN, change="v.scale = 2"),
    _value("shared child", "nn.Sequential(*[nn.Linear(3, 3)] * 2)", "nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))",
           "v[0] is v[1]"),
    # Parametrizations.
    _value("parametrization", "parametrized(2.0)", "parametrized(4.0)", setup=_PARAMETRIZED,
           change="v.parametrizations.weight[0].by = 4.0"),
    Edit("code of a parametrization", "parametrized(2.0)", None, "read(v)", _HEAD + _PARAMETRIZED,
         _HEAD + _PARAMETRIZED.replace("weight / self.by", "weight * self.by")),
    _value("pruning mask", "pruned(True)", "pruned(False)", "v.weight_mask.sum()", setup=_PARAMETRIZED, layout=True),
    # LSTM, attention.
    _value("LSTM", "filled(nn.LSTM(3, 2), 0.5)", "filled(nn.LSTM(3, 2), 0.25)", layout=True,
           change="v.weight_ih_l0.fill_(0.25)"),
    _value("direction of an LSTM", "filled(nn.LSTM(3, 2))", "filled(nn.LSTM(3, 2, bidirectional=True))",
           "len(v._flat_weights)"),
    _value("heads of attention", "filled(nn.MultiheadAttention(4, 2))", "filled(nn.MultiheadAttention(4, 4))",
           "v.num_heads",
           change="v.num_heads = 4"),
    _value("activation that is a function", "layer('relu')", "layer('gelu')", "v.activation(torch.tensor(-1.0))",
           setup="""

    def layer(activation):
        return filled(nn.TransformerEncoderLayer(4, 2, 8, activation=activation, batch_first=True))
"""),
    # Graphs.
    _value("weights of a traced module", "traced(0.5)", "traced(0.25)", setup=_JIT, layout=True),
    _value("constant of a scripted module", "torch.jit.script(Scripted(2.0))", "torch.jit.script(Scripted(3.0))",
           setup=_JIT),
    Edit("code of a scripted module", "torch.jit.script(Scripted(2.0))", None, "read(v)", _HEAD + _JIT,
         _HEAD + _JIT.replace("+ 1.0", "+ 2.0")),
    _value("constant of an fx graph", "symbolic(2.0)", "symbolic(3.0)", setup=_JIT),
    _value("operator of an fx graph", "edited('add')", "edited('sub')", setup=_JIT),
    _value("weights of an fx graph", "torch.fx.symbolic_trace(filled(nn.Linear(3, 2)))",
           "torch.fx.symbolic_trace(filled(nn.Linear(3, 2), 0.25))", setup=_JIT, layout=True),
    _value("exported graph", "exported(2.0)", "exported(3.0)", setup=_JIT, slow=True),
    _value("packed weights", "quantized(0.5)", "quantized(0.25)", setup=_JIT),
    _value("meta module", "nn.Linear(3, 2, device='meta')", "nn.Linear(3, 3, device='meta')", "v.weight.shape[0]"),
]  # fmt: skip
