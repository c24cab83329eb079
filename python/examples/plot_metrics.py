#!/usr/bin/env python3
"""Draws loss and test accuracy of `train --metrics FILE`: plot_metrics.py FILE [PICTURE]. Needs matplotlib."""

import json
import sys


def curves(lines):
    """[(step, loss)], [(step, accuracy)]. A step that was taken again after a kill counts once; half a line is left out."""
    losses, means, accuracies = {}, {}, {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        for key, curve in (("step_loss", losses), ("loss_all", means), ("test_accuracy", accuracies)):
            if record.get(key) is not None:
                curve[record["step"]] = record[key]
    return sorted((losses or means).items()), sorted(accuracies.items())


def main():
    import matplotlib.pyplot as plt
    with open(sys.argv[1]) as file:
        found = curves(file)
    figure, panels = plt.subplots(1, 1 + bool(found[1]), squeeze=False, figsize=(10, 4))
    for panel, curve, name in zip(panels[0], found, ("loss", "test accuracy")):
        panel.plot(*zip(*curve))
        panel.set(xlabel="step", title=name)
    figure.savefig(sys.argv[2] if len(sys.argv) > 2 else "metrics.svg")


if __name__ == "__main__":
    main()
