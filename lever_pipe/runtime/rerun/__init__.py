"""What runs again: judged by the content of files and by manifests, told in sentences, spared where it is made."""
