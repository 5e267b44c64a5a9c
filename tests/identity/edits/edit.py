"""An edit: a value before and after it, and what a program reads from the value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """An edit of a value, or of the class or function it is.

    Args:
        name: in the field's terms.
        old: the value, as an expression.
        new: the value after the edit; None leaves it, and the setup changes.
        reading: the number that the program reads from the value `v`. It differs before and after.
        setup: statements that define what the value is made of.
        setup_new: those after the edit; None leaves them.
        change: statements that make the same edit on the living value `v`, in place.
        refusable: nobody can tell what such a value is, so a system may refuse to answer.
        layout: only the content of tensors or arrays changes, which compiled calls take as inputs.
        needs: packages that must be installed.
        slow: runs with `--slow` only, and in few places.
    """

    name: str
    old: str
    new: str | None = None
    reading: str = "v"
    setup: str = ""
    setup_new: str | None = None
    change: str | None = None
    refusable: bool = False
    layout: bool = False
    needs: tuple[str, ...] = ()
    slow: bool = False

    def value(self, edited: bool) -> str:
        """The value's expression, before or after the edit."""
        return self.new if edited and self.new is not None else self.old
