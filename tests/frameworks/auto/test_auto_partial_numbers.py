"""Numbers of a training loop that are of a part where the script means the batch, found in its source."""

from __future__ import annotations

import ast

import pytest

from distrun.auto.partial_numbers import partial_numbers

pytestmark = pytest.mark.gate
LOOP = """
for epoch in range(3):
    correct = seen = total = running = 0
    for step, (x, y) in enumerate(loader):
        output = model(x)
        recon = criterion(output, y)
        loss = recon + 0.1 * penalty
        loss.backward()
        optimizer.step()
        n = x.size(0)
        correct += (output.argmax(1) == y).sum().item()
        seen += len(x)
        total += loss.item()
        running += loss.item() * n
        {inside}
    {after}
"""


@pytest.mark.parametrize(
    ("inside", "after", "found"),
    [
        ("print(loss.item() / len(x))", "", "size of rank 0's part"),
        ("print(f'{recon.item() / n:.3f}')", "", "size of rank 0's part"),
        ("average = loss.item() / x.shape[0]", "", "size of rank 0's part"),
        ("value = loss.item(); print(value / n)", "", "size of rank 0's part"),
        ("losses.append(float(loss) / len(y))", "", "size of rank 0's part"),
        ("", "print(total / seen)", "losses of whole batches"),
        ("", "print(correct / len(dataset))", "not counted there"),
        ("", "print(running / len(dataset))", "not counted there"),
        ("", "print(correct)", "has counted in its part"),
        ("", "print(f'{correct} of {len(dataset)}')", "has counted in its part"),
        ("", "print('%d right' % correct)", "has counted in its part"),
        ("", "print('{}'.format(correct))", "has counted in its part"),
        ("print('[{}/{}]'.format(step * len(x), len(dataset)))", "", "of rank 0's part of the batch"),
        ("", "print(correct / seen, running / seen, total / len(loader), total / len(dataset))", None),
        ("print(loss.item(), loss.item() / len(loader))", "", None),
        ("accuracy = (output.argmax(1) == y).sum().item() / len(y)", "print(accuracy)", None),
        ("", "print(f'{correct / seen:.2%}', epoch)", None),
        ("penalty += criterion(y, style[:n]); value = penalty.item()", "print(value / len(loader))", None),
    ],
)
def test_what_is_said_of_a_training_loop(inside, after, found):
    said = [text for _, text in partial_numbers(ast.parse(LOOP.format(inside=inside, after=after)))]
    assert len(said) == (found is not None), said
    assert found is None or found in said[0]


def test_an_evaluation_is_left_alone():
    source = """
def test():
    for x, y in loader:
        total += loss(model(x), y).item()
        correct += (model(x).argmax(1) == y).sum().item()
        print(total / len(x))
    print(correct, correct / len(dataset))
"""
    assert list(partial_numbers(ast.parse(source))) == []
