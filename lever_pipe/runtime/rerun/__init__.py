"""What runs again: judged by the content of files and by run cards, told in sentences, spared where it is made."""
