"""Parameters of estimators with scikit-learn's habits: get_params, set_params, clone, repr."""

from __future__ import annotations

import html
import inspect
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from gptd_rl.exceptions import NotFittedError


class Parameters:
    """Constructor arguments as attributes of the same names; learnt attributes end in an underscore."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments; `deep` adds those of nested estimators as ``name__parameter``."""
        params = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        for name, value in list(params.items()) if deep else []:
            if isinstance(value, Parameters):
                params |= {f"{name}__{inner}": v for inner, v in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change the constructor's arguments; ``name__parameter`` reaches into a nested estimator."""
        self._check_names(params)
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            if inner:
                getattr(self, outer).set_params(**{inner: value})
            else:
                setattr(self, name, value)
        return self

    def _check_names(self, params: Iterable[str]) -> None:
        own = self.get_params(deep=False)
        for name in params:
            outer, _, inner = name.partition("__")
            if outer not in own:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {sorted(own)}.")
            if inner and not hasattr(own[outer], "set_params"):
                raise ValueError(f"{outer} of {type(self).__name__} is no estimator: it has no parameter {inner!r}.")

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        own = self.get_params(deep=False)
        changed = [
            repr(v) if defaults[n].default is inspect.Parameter.empty else f"{n}={v!r}"
            for n, v in own.items()
            if not np.array_equal(v, defaults[n].default)
        ]
        text = f"{type(self).__name__}({', '.join(changed)})"
        fitted = self._describe_fit()
        return f"{text}  # {fitted}" if fitted else text

    def _repr_html_(self) -> str:
        """The estimator as notebooks show it."""
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(repr(value))}</td></tr>"
            for name, value in self.get_params(deep=False).items()
        )
        fitted = html.escape(self._describe_fit() or "not fitted")
        name = type(self).__name__
        return f"<details><summary><b>{name}</b>: {fitted}</summary><table>{rows}</table></details>"

    def __sklearn_tags__(self) -> Any:
        """How scikit-learn sees the estimator; only scikit-learn asks."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a posterior to ask."""
        return hasattr(self, "posterior_")

    def _become(self, other: Self) -> Self:
        """Take over the attributes of a copy in one step: an interrupt leaves either the old ones or the new."""
        vars(self).update(vars(other))
        return self

    def _describe_fit(self) -> str:
        """One line about what was fitted; empty if nothing was."""
        return ""

    def _check_fitted(self) -> None:
        if not hasattr(self, "posterior_"):
            raise NotFittedError(f"this {type(self).__name__} has not been fitted yet: call fit(data) first.")
