"""Tables of study `intention`: collected runs, what they are compared by, and the documents' tables."""
