"""What earlier versions wrote and said, kept: today's code must start on their data and work with their programs.

`states/NAME` holds a version's wheel and the directories and metadata that its bookies left behind; `make.py` made it.
"""
