"""Classes of texts: the last state of an LSTM over embedded tokens."""

from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocabulary, width, hidden, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens):
        _, (h, _) = self.lstm(self.embedding(tokens))
        return self.head(h[-1])
