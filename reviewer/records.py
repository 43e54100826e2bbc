"""Owns what the reviewer is asked and what it remembers, as plain values."""

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime

from reviewer.decisions import Follows, Mode, Permissions
from reviewer.rules.classify import Action, Outcome


@dataclass(frozen=True)
class ReviewRequest:
    """A request for a decision on one action."""

    request_id: str
    project_id: str
    session_id: str
    turn_id: str
    item_id: str
    mode: Mode
    action: Action
    permissions: Permissions = field(default_factory=Permissions)
    justification: str = ""

    def digest(self) -> str:
        """SHA-256 of the action and the permissions, in hexadecimal."""
        parts = {
            "argv": self.action.argv,
            "script": self.action.script,
            "cwd": self.action.cwd,
            "as_root": self.action.as_root,
            "justification": self.justification,
            "root": self.permissions.root,
            "dangerous": self.permissions.dangerous,
            "writable_roots": self.permissions.writable_roots,
        }
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class DecisionRecord:
    """A decision as it is kept. `outcome` says whether the action may be carried out."""

    id: str
    request_id: str
    project_id: str
    session_id: str
    turn_id: str
    item_id: str
    action_digest: str
    mode: Mode
    verdict: Outcome
    outcome: Follows
    reason: str
    rule_id: str
    matched_command: str
    create_time: datetime
