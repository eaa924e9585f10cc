"""A conversation about images: several turns, a new image in a later turn, a turn taken back."""

from pathlib import Path

import cutaway

media = Path(__file__).parent / "media"
model = cutaway.load("nano")
chat = model.chat(max_new_tokens=12)

for question, files in [
    ("What shape is this?", ["square.png"]),
    ("What color is the square?", []),
    ("What digit is this?", ["digit.png"]),
]:
    answer = chat.ask(question, images=[media / file for file in files])
    print(f"{question:<28} {answer}")

chat.undo()
print(f"\nafter undo: {len(chat.messages)} messages, the last answer is {chat.text!r}")
print(f"it was generated as the ids {list(chat.messages[-1]['content'].ids)}")
