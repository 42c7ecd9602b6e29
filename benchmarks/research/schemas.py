"""Schemas of bounded length, chosen before anything was measured: what people ask of structured output."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Word = Annotated[str, Field(max_length=12)]
Phrase = Annotated[str, Field(max_length=40)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Person(Strict):
    name: Annotated[str, Field(max_length=24)]
    age: Annotated[int, Field(ge=0, le=120)]
    married: bool


class Sentiment(Strict):
    label: Literal["positive", "neutral", "negative"]
    score: Annotated[int, Field(ge=0, le=10)]
    reason: Phrase


class Address(Strict):
    street: Phrase
    number: Annotated[int, Field(ge=1, le=999)]
    city: Word


class Customer(Strict):
    customer_name: Phrase
    shipping_address: Address
    billing_address: Address | None


class Tags(Strict):
    tags: Annotated[list[Word], Field(max_length=5)]


class Item(Strict):
    product: Literal["apple", "banana", "cherry", "date"]
    quantity: Annotated[int, Field(ge=1, le=20)]


class Order(Strict):
    items: Annotated[list[Item], Field(min_length=1, max_length=3)]
    payment_method: Literal["cash", "credit_card", "bank_transfer"]
    paid: bool


class Appointment(Strict):
    year: Annotated[int, Field(ge=1900, le=2100)]
    month: Annotated[int, Field(ge=1, le=12)]
    day: Annotated[int, Field(ge=1, le=31)]
    time_of_day: Literal["morning", "afternoon", "evening"]


class Solution(Strict):
    steps: Annotated[list[Phrase], Field(max_length=4)]
    final_answer: Annotated[int, Field(ge=-9999, le=9999)]


class ToolCall(Strict):
    tool_name: Literal["search_web", "read_file", "run_python"]
    tool_argument: Phrase
    requires_confirmation: bool


SCHEMAS: tuple[type[Strict], ...] = (
    Person,
    Sentiment,
    Customer,
    Tags,
    Order,
    Appointment,
    Solution,
    ToolCall,
)
