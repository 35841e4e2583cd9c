"""What runs again: checked by the content of files and by manifests, told in sentences, skipped where it is made."""
