"""A sample of the damage harness (tests/harness/damage.py says what is judged)."""

from __future__ import annotations

from tests.harness.damage import images, one_place


async def test_damage_is_never_served_and_takes_nothing_intact_along() -> None:
    all_images = await images()
    for place in range(150):
        await one_place(all_images, place)
