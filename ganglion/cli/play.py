"""Shows a saved agent at play, as a file (.gif, .mp4) or in a window; or lets a person play a board game against it.

ganglion play runs/cartpole-dqn-20260101-120000                       into the run's videos folder
ganglion play runs/cartpole-dqn-20260101-120000 --out cartpole.mp4
ganglion play runs/cartpole-dqn-20260101-120000 --window
ganglion play runs/connect_four-league-20260101-120000 --players main main-3      of a league: a match of two players
ganglion play runs/tictactoe-alphazero-20260101-120000 --human            against you, in the terminal
ganglion play runs/tictactoe-alphazero-20260101-120000 --human --browser  on a page, for this machine alone
ganglion play runs/tictactoe-alphazero-20260101-120000 --tree tree.svg --moves 4,0    what it searches there
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ganglion.cli.arguments import existing, import_argument, load_torch, run_argument
from ganglion.cli.evaluate import which_arguments
from ganglion.cli.text import say
from ganglion.errors import UserError

MOST = {"episodes": 1_000_000, "frames": 10_000_000, "fps": 1_000}


def arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="FILE", help="a .gif or .mp4 file")
    where.add_argument("--window", action="store_true", help="a window instead of a file")
    where.add_argument("--human", action="store_true", help="a board game against you, in the terminal")
    where.add_argument("--tree", metavar="FILE", help="a picture of its search tree: .svg, .png or .pdf")
    parser.add_argument("--browser", action="store_true", help="with --human: on a page of this machine")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="of that page (0: any that is free)")
    parser.add_argument("--second", action="store_true", help="with --human: the agent begins")
    parser.add_argument("--moves", default="", metavar="A,B", help="with --tree: actions that lead to the position")
    parser.add_argument("--episodes", type=int, default=1, metavar="N", help="how many (1)")
    parser.add_argument("--frames", type=int, default=5_000, metavar="N", help="at most so many in all (5000)")
    parser.add_argument("--fps", type=int, default=30, metavar="N", help="frames per second (30)")
    parser.add_argument("--seed", type=int, default=1_000_000, metavar="N", help="of the first episode (1000000)")
    parser.add_argument("--players", nargs="+", metavar="PLAYER", help="of a league: who plays whom, one or two names")
    which_arguments(parser)
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    folder = existing(args.folder)
    for name in MOST:
        if not 1 <= getattr(args, name) <= MOST[name]:
            raise UserError(f"--{name} should be between 1 and {MOST[name]}, got {getattr(args, name)}.")
    if not 0 <= args.port < 2**16:
        raise UserError(f"--port should be between 0 and 65535, got {args.port}.")
    if not 0 <= args.seed < 2**31:
        raise UserError(f"--seed should be between 0 and {2**31 - 1}, got {args.seed}.")
    if (args.browser or args.second) and not args.human:
        raise UserError(f"--{'browser' if args.browser else 'second'}: goes with --human.")
    if args.human or args.tree:
        return on_board(args, folder)
    videos = folder / "videos" if isinstance(folder, Path) else Path(f"videos/{folder.name}")
    if args.players and len(args.players) > 2:
        raise UserError(f"--players takes one or two names, got {len(args.players)}.")
    title = "-".join(args.players or [args.which])
    out = Path(args.out) if args.out else videos / f"{title}-{args.seed}.gif"
    if not args.window and out.suffix not in (".gif", ".mp4"):
        raise UserError(f"--out should end in .gif or .mp4, got {str(out)!r}.")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if not args.window:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # files need no screen
    load_torch()
    from ganglion.config.files import import_module

    for module in args.imports:
        import_module(module)
    shown = limited(all_frames(folder, args), args.frames)
    if args.window:
        in_window(shown, args.fps, str(folder))
        return 0
    count = into_file(shown, out, args.fps)
    say(f"{count} frames in {out}")
    return 0


def all_frames(folder: Any, args: argparse.Namespace) -> Iterator[Any]:
    """Of a saved agent, or of a match in a league."""
    from ganglion.runtime.run import frames, load_config

    if args.players is None and load_config(folder).league is None:
        return frames(folder, args.episodes, args.seed, args.which)
    from ganglion.league.saved_league import match_frames

    return match_frames(folder, args.players or (), args.episodes, args.seed)


def on_board(args: argparse.Namespace, folder: Any) -> int:
    """A board game against a person, or what is searched in one."""
    load_torch()
    from ganglion.cli import human
    from ganglion.config.files import import_module

    for module in args.imports:
        import_module(module)
    against, second = human.opponent(folder, args.which), int(args.second)
    if args.tree:
        from ganglion.cli.tree_picture import picture

        say(picture(against, args.moves, args.tree))
    elif args.browser:
        human.in_browser(against, second, args.port)
    else:
        human.in_terminal(human.HumanMatch(against, second))
    return 0


def limited(shown: Iterator[Any], most: int) -> Iterator[Any]:
    """Frames until the limit; a world that cannot be drawn is refused at once."""
    for number, frame in enumerate(shown):
        if frame is None:
            raise UserError("this environment cannot be drawn: it gives no frames.")
        if number >= most:
            return
        yield frame


def into_file(shown: Iterator[Any], out: Path, fps: int) -> int:
    """Writes frames as they come, and says how many."""
    try:
        from imageio.v2 import get_writer
    except ModuleNotFoundError:
        raise missing("imageio") from None
    first = next(shown)  # whatever is wrong shows before a file is begun
    out.parent.mkdir(parents=True, exist_ok=True)
    options = {"duration": 1000 / fps, "loop": 0} if out.suffix == ".gif" else {"fps": fps, "macro_block_size": 1}
    try:
        opened: Any = get_writer(out, **options)
        with opened as writer:
            writer.append_data(first)
            count = 1
            for frame in shown:
                writer.append_data(frame)
                count += 1
    except ImportError:
        raise missing("imageio-ffmpeg") from None
    return count


def in_window(shown: Iterator[Any], fps: int, title: str) -> None:
    """Shows frames until they end or the window is closed."""
    try:
        import pygame
    except ModuleNotFoundError:
        raise missing("pygame-ce") from None
    pygame.display.init()
    try:
        clock, screen = pygame.time.Clock(), None
        for frame in shown:
            if screen is None:
                screen = pygame.display.set_mode((frame.shape[1], frame.shape[0]))
                pygame.display.set_caption(title)
            screen.blit(pygame.surfarray.make_surface(frame.swapaxes(0, 1)), (0, 0))
            pygame.display.flip()
            if any(event.type == pygame.QUIT for event in pygame.event.get()):
                return
            clock.tick(fps)
    except pygame.error as error:
        raise UserError(f"no window can be opened here: {error}. Try --out FILE.gif") from None
    finally:
        pygame.display.quit()


def missing(package: str) -> UserError:
    return UserError(f"play needs the package {package!r}. Install it with: pip install 'ganglion[video]'")
