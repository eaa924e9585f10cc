"""The main job in one go: asks the bundled model about bundled images and a video, and says how sure it is.

What is in each file is known, so the right answer stands beside the model's.
"""

from pathlib import Path

import cutaway
from cutaway.tasks.ask import ask

HERE = Path(__file__).parent / "media"

QUESTIONS = [
    ("digit.png", "What digit is this?", "6"),
    ("digit.png", "What color is the digit?", "blue"),
    ("square.png", "What shape is this?", "square"),
    ("square.png", "What color is the square?", "red"),
    ("shapes.png", "What color is the triangle?", "black"),
    ("video.mp4", "What color is the cross?", "red"),
]

model = cutaway.load("nano")
print(f"{'file':<11} {'question':<28} {'right':<7} answer, with the probability of each token")
for file, question, right in QUESTIONS:
    answer = ask(model, question, [HERE / file], max_new_tokens=8)
    sure = ", ".join(f"{token.text!r} {token.probability:.0%}" for token in answer.tokens)
    print(f"{file:<11} {question:<28} {right:<7} {answer.text} ({sure})")
