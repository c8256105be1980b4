#!/usr/bin/env python3
"""Writes the pictures of the documentation: `python3 docs/pictures/make.py` (`--check` only compares).

Each picture brings its own background and both colour schemes, so it is readable on any page.
"""

import pathlib
import sys
from html import escape

STYLE = """
  svg { --paper: #ffffff; --edge: #d0d7de; --ink: #1f2328; --soft: #59636e; --lane: #eaeef2;
        --good: #2da44e; --warn: #bf8700; --bad: #cf222e; --calm: #0969da; --next: #8250df; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #151b23; --edge: #3d444d; --ink: #f0f6fc; --soft: #a3adb8; --lane: #2a313c;
          --good: #3fb950; --warn: #d29922; --bad: #f85149; --calm: #58a6ff; --next: #ab7df8; }
  }
  text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
  .soft { fill: var(--soft); } .small { font-size: 12.5px; } .bold { font-weight: 600; }
  .good { fill: var(--good); } .warn { fill: var(--warn); } .bad { fill: var(--bad); }
  .calm { fill: var(--calm); } .next { fill: var(--next); } .lane { fill: var(--lane); }
  .mid { text-anchor: middle; } .end { text-anchor: end; }
  .line { stroke: var(--soft); stroke-width: 1.5; fill: none; }
  .goodline { stroke: var(--good); stroke-width: 2; fill: none; }
  .badline { stroke: var(--bad); stroke-width: 2; fill: none; }
  .calmline { stroke: var(--calm); stroke-width: 2; fill: none; }
  .dash { stroke-dasharray: 4 4; }
  .box { fill: none; stroke: var(--edge); stroke-width: 1.5; }
  .onbar { fill: var(--paper); font-weight: 600; }
"""

HEADS = "".join(
    f'<marker id="{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" class="{fill}"/></marker>'
    for kind, fill in [("soft-head", "soft"), ("good-head", "good"), ("bad-head", "bad"), ("calm-head", "calm")]
)


class Picture:
    def __init__(self, width, height, title, description):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title><desc id="d">{escape(description)}</desc>',
            f"<style>{STYLE}</style><defs>{HEADS}</defs>",
            f'<rect x="0.75" y="0.75" width="{width - 1.5}" height="{height - 1.5}" rx="10" '
            'style="fill: var(--paper); stroke: var(--edge); stroke-width: 1.5"/>',
        ]

    def text(self, x, y, words, *classes):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{" ".join(classes)}">{escape(words)}</text>')

    def bar(self, x1, x2, y, height, kind, opacity=1):
        self.parts.append(
            f'<rect x="{x1:g}" y="{y:g}" width="{x2 - x1:g}" height="{height:g}" rx="4" class="{kind}" '
            f'opacity="{opacity:g}"/>'
        )

    def box(self, x, y, width, height, kind="box"):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" class="{kind}"/>')

    def line(self, x1, y1, x2, y2, kind="line", head="", dashed=False):
        marker = f' marker-end="url(#{head}-head)"' if head else ""
        dash = " dash" if dashed else ""
        self.parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" class="{kind}{dash}"{marker}/>')

    def cross(self, x, y, size=6):
        self.parts.append(
            f'<path d="M{x - size:g} {y - size:g}l{2 * size:g} {2 * size:g}m0 {-2 * size:g}l{-2 * size:g} '
            f'{2 * size:g}" class="badline"/>'
        )

    def svg(self):
        return "\n".join(self.parts) + "\n</svg>\n"


def lease():
    """TTL 30 s. Renewed after 10 s; then the store cannot be reached."""
    picture = Picture(
        860, 330, "The life of a lease",
        "A holder claims a lock with a TTL of 30 seconds and renews it after 10. Then the store cannot be reached. "
        "At 25 seconds the holder is warned, at 39.7 it stops its work, and at 41 the store grants the lock to another.",
    )
    at = lambda second: 96 + second * 15.2
    holder, store = 92, 196
    picture.text(24, 36, "The life of a lease", "bold")
    picture.text(836, 36, "TTL 30 s, renewed every third of it", "soft", "end")
    for y, name in [(holder, "Holder"), (store, "Store")]:
        picture.bar(at(0), at(48), y, 30, "lane")
        picture.text(24, y + 20, name, "bold")
    # The holder's view.
    picture.bar(at(1), at(25), holder, 30, "good")
    picture.text(at(13), holder + 20, "works", "onbar", "mid")
    picture.bar(at(25), at(39.7), holder, 30, "warn")
    picture.text(at(32.3), holder + 20, "in danger", "onbar", "mid")
    picture.text(at(40.2), holder + 20, "stopped", "bad", "bold")
    # The store's view.
    picture.bar(at(0.5), at(41), store, 30, "calm")
    picture.text(at(20), store + 20, "the claim holds the lock", "onbar", "mid")
    picture.bar(at(41), at(48), store, 30, "next")
    picture.text(at(44.5), store + 20, "next holder", "onbar", "mid", "small")
    # What goes between them.
    for sent, label in [(0, "claim"), (10, "renew")]:
        picture.line(at(sent), holder + 30, at(sent + 0.5), store - 1, "goodline", "good")
        picture.line(at(sent + 0.7), store, at(sent + 1.2), holder + 31, "goodline", "good")
        picture.text(at(sent + 1.6), holder + 70, label, "good", "small", "bold")
    for sent in [20, 28, 35]:
        picture.line(at(sent), holder + 30, at(sent + 0.35), holder + 58, "badline", dashed=True)
        picture.cross(at(sent + 0.4), holder + 66, 5)
    picture.text(at(21.2), holder + 70, "no answer", "bad", "small", "bold")
    # The moments.
    for second, label, kind in [(25, "warned: half the TTL", "warn"), (39.7, "lost: 39.7 s", "bad")]:
        picture.line(at(second), holder - 14, at(second), holder + 30)
        picture.text(at(second), holder - 20, label, kind, "mid", "small", "bold")
    picture.line(at(41), store, at(41), store + 58)
    picture.text(at(41) + 8, store + 54, "free: 41 s", "calm", "small", "bold")
    # The two terms.
    picture.line(at(10), holder + 30, at(10), store + 88, dashed=True)
    picture.line(at(10), store + 82, at(39.7), store + 82, "line", "soft")
    picture.text(at(12), store + 102, "holder: from the send, 30 s less 1 % and 2 ms", "soft", "small")
    picture.line(at(10.5), store + 50, at(41), store + 50, "line", "soft")
    picture.text(at(12), store + 67, "store: from the arrival, 30 s", "soft", "small")
    picture.line(at(39.7), holder + 30, at(39.7), store + 88, dashed=True)
    return picture


def handoff():
    picture = Picture(
        860, 300, "A hand-off",
        "Before: A holds the lock with token 33, and B, C and D wait. A releases. After: B holds the lock with token "
        "34 and is woken; C and D still wait and are not woken.",
    )
    picture.text(24, 36, "A hand-off", "bold")
    picture.text(836, 36, "one call, one wake-up, whatever the length of the queue", "soft", "end")

    def side(x, title, holder, token, kind, queue):
        picture.box(x, 60, 300, 212)
        picture.text(x + 18, 86, title, "soft", "small")
        picture.text(x + 18, 124, "holder", "soft")
        picture.bar(x + 96, x + 276, 102, 34, kind)
        picture.text(x + 186, 124, f"{holder}, token {token}", "onbar", "mid")
        picture.text(x + 18, 168, "queue", "soft")
        for place, name in enumerate(queue):
            picture.bar(x + 96, x + 276, 148 + place * 40, 32, "lane")
            picture.text(x + 186, 169 + place * 40, name, "mid")

    side(24, "store, before", "A", 33, "calm", ["B", "C", "D"])
    side(536, "store, after", "B", 34, "next", ["C", "D"])
    picture.line(340, 119, 520, 119, "calmline", "calm")
    picture.text(430, 108, "A releases", "calm", "mid", "bold")
    picture.line(430, 126, 430, 176, "goodline", "good")
    picture.text(430, 198, "B is told: you hold it", "good", "mid", "bold")
    picture.text(430, 232, "C and D sleep on", "soft", "mid")
    return picture


def fencing():
    picture = Picture(
        860, 470, "What a fencing token stops",
        "A gets token 33 and is frozen. Its lease ends, and B gets token 34 and writes. A wakes up and writes with "
        "token 33. The database has seen 34 and refuses.",
    )
    picture.text(24, 36, "What a fencing token stops", "bold")
    lanes = {"A": 120, "lock": 330, "B": 540, "database": 740}
    top, bottom = 96, 446
    for name, x in lanes.items():
        picture.text(x, 78, {"A": "holder A", "B": "holder B"}.get(name, name), "mid", "bold")
        picture.line(x, top, x, bottom)
    a, lock, b, database = lanes.values()

    def message(x1, x2, y, words, kind):
        gap = 12 if x2 > x1 else -12
        picture.line(x1 + gap / 2, y, x2 - gap / 2, y, f"{kind}line", kind)
        where = (x1 + x2) / 2
        picture.text(where, y - 8, words, kind, "mid", "small", "bold")

    message(lock, a, 130, "granted: token 33", "calm")
    # Behind the bars of the lanes that it crosses.
    message(a, database, 396, "write, token 33", "bad")
    picture.bar(a - 9, a + 9, 136, 26, "good")
    picture.bar(a - 9, a + 9, 162, 208, "lane")
    picture.text(a - 18, 230, "frozen", "soft", "end", "small")
    picture.text(a - 18, 247, "(pause, swap,", "soft", "end", "small")
    picture.text(a - 18, 264, "SIGSTOP …)", "soft", "end", "small")
    picture.bar(lock - 9, lock + 9, 130, 62, "calm")
    picture.text(lock + 18, 196, "A's lease ends", "soft", "small")
    picture.bar(lock - 9, lock + 9, 222, 218, "next")
    message(lock, b, 226, "granted: token 34", "good")
    picture.bar(b - 9, b + 9, 232, 208, "next")
    message(b, database, 280, "write, token 34", "good")
    picture.text(database + 14, 284, "✓ seen: 34", "good", "small", "bold")
    picture.bar(a - 9, a + 9, 370, 34, "warn")
    picture.text(a - 18, 390, "wakes up", "warn", "end", "small", "bold")
    picture.cross(database, 396, 7)
    picture.text(database + 14, 400, "33 < 34:", "bad", "small", "bold")
    picture.text(database + 14, 417, "refused", "bad", "small", "bold")
    return picture


def main():
    folder = pathlib.Path(__file__).parent
    stale = []
    for make in (lease, handoff, fencing):
        path, text = folder / f"{make.__name__}.svg", make().svg()
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(path.name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"not as make.py writes them: {', '.join(stale)}")


if __name__ == "__main__":
    main()
