"""What runs again: checked by the content of files and by manifests, told in sentences, spared where it is made."""
