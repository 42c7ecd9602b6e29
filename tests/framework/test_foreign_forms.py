"""Samplers in other forms, and what they return: right ones never fail, and wrong ones never pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwood import InvalidInput
from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models
from tests.framework.foreign_forms import BATCHES, FORMS
from tests.framework.test_foreign_chance import PLAIN, verdict
