"""The embedded world: drawn images, questions about them and annotators, in OK-VQA's file format."""
