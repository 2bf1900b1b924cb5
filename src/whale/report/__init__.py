"""What a run has shown, for people and for programs: ``data.summarise`` (JSON), ``text.print_report`` (terminal),
``html.write_report`` (one self-contained page), ``picture.write_picture`` (a small SVG).

Reports read the committed state of a run folder and take no lock, so a run under way can be looked at.
"""
