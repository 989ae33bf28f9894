"""WORDS: plain data and errors that several rooms share; standard library only."""
