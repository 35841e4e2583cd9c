"""The embedded world: drawn images, questions about them and annotators, in the file format of OK-VQA or VQAv2."""
