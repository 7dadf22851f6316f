"""Images: root file systems that sandboxes share.

store   by digest and name, on a node
debian  made of Debian's packages
oci     unpacked from an OCI image
"""
