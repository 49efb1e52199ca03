"""The README of an export, from a template, the export's own record and measured numbers."""
