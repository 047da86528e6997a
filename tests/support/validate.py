"""Compares reports of the doctor, one a line on standard input, with its JSON Schema, named as the argument.

Says first that it is ready, then for each report one line: empty where it is as the schema says, else what is not.
"""
import json
import sys

from jsonschema import Draft202012Validator

with open(sys.argv[1], encoding="utf-8") as file:
    schema = json.load(file)
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)
print("ready", flush=True)
for line in sys.stdin:
    errors = (f"{error.json_path}: {error.message}" for error in validator.iter_errors(json.loads(line)))
    print(json.dumps("; ".join(errors)), flush=True)
