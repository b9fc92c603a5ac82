"""Mutants: small mistakes put into the package one at a time, each of which some test must notice.

    python tests/mutants.py            # all of them, some minutes
    python tests/mutants.py partition  # those whose name contains a word

A mutant that survives is a rule that no test specifies.  Numerical rules are nailed down by arithmetic; the first ones
here are about provenance: which draw, which evaluation and which path is on record.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "hansa"


@dataclass(frozen=True)
class Mutant:
    """A mistake: in which file, what stands there, what stands there instead, and the tests that should notice."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str

    def applied(self, source: Path) -> str:
        """The file with the mistake in it."""
        text = (source / self.file).read_text(encoding="utf-8")
        count = text.count(self.right)
        if count != 1:
            raise SystemExit(
                f"The mutant '{self.name}' finds its line {count} times in {self.file}: bring it up to date."
            )
        return text.replace(self.right, self.wrong)


MUTANTS = (
    Mutant(
        "a site is scaled by all its rows, those it is tested on too",
        "data/sites.py",
        "    rows = data.train.x[division.train[name]]\n",
        "    rows = data.train.x[np.union1d(division.train[name], division.local(name))]\n",
        "tests/data/test_sites.py",
    ),
    Mutant(
        "a site keeps columns that are constant in the rows it trains on",
        "data/sources/encoding.py",
        "np.where(absent, -np.inf, rows).max(axis=0) > np.where",
        "np.where(absent, -np.inf, rows).max(axis=0) >= np.where",
        "tests/data/test_sites.py",
    ),
    Mutant(
        "a client receives leaves of columns that it has not",
        "task.py",
        'if key.partition(".")[2] not in lacks} if lacks else message',
        "} if lacks else message",
        "tests/models/test_tokens.py",
    ),
    Mutant(
        "a column starts differently at sites with other columns beside it",
        "models/networks/tokens.py",
        "seed_for(torch.initial_seed(), name)",
        "seed_for(torch.initial_seed(), name, len(inputs))",
        "tests/models/test_tokens.py",
    ),
    Mutant(
        "leaves padded for wider clients stay padded",
        "engines/kernels/widths.py",
        "dense(one)[..., :width].contiguous()",
        "dense(one).contiguous()",
        "tests/engines/test_widths.py",
    ),
    Mutant(
        "an extractor's columns stand in another extractor's place",
        "features/blocks.py",
        "found[places, end - part.shape[1] : end] = part[inside]",
        "found[places, : part.shape[1]] = part[inside]",
        "tests/features/test_several_extractors.py",
    ),
    Mutant(
        "the classes of few samples do not depend on the client",
        "data/split.py",
        "dirichlet(np.full(classes, test.train_alpha), numpy_generator(seed, name))",
        "dirichlet(np.full(classes, test.train_alpha), numpy_generator(seed))",
        "tests/data/test_few_samples.py",
    ),
    Mutant(
        "a class that was not drawn is tested on",
        "data/split.py",
        "held[group[count:]] = count > 0",
        "held[group[count:]] = True",
        "tests/data/test_few_samples.py",
    ),
    Mutant(
        "a picture is of the last evaluation, whichever was deployed",
        "results/exhibits.py",
        "known if known in found else rounds[-1]",
        "rounds[-1]",
        "tests/report/test_exhibits.py",
    ),
    Mutant(
        "what clients observe is not counted",
        "running/evaluate.py",
        "8 * len(rows) + sum(leaf[0].nbytes for leaf in told.values())",
        "8 * len(rows)",
        "tests/report/test_exhibits.py",
    ),
    Mutant(
        "the guard asks whose the server's end of a connection is",
        "deploy/flower_guard.py",
        '[_end(scope["client"]), _end(scope["server"])]',
        '[_end(scope["server"]), _end(scope["client"])]',
        "tests/deploy/test_flower_guard.py",
    ),
    Mutant(
        "the guard lets root in",
        "deploy/flower_guard.py",
        "int(row[7]) == os.geteuid()",
        "int(row[7]) in (0, os.geteuid())",
        "tests/deploy/test_flower_guard.py",
    ),
    Mutant(
        "the guard believes in forwarded addresses",
        "deploy/flower_guard.py",
        'name.startswith(b"x-forwarded")',
        "False",
        "tests/deploy/test_flower_guard.py",
    ),
    Mutant(
        "the guard takes closed connections for their owner's",
        "deploy/flower_guard.py",
        "row[1:4] == [*ends, ESTABLISHED]",
        "row[1:3] == ends",
        "tests/deploy/test_flower_guard.py",
    ),
    Mutant(
        "what a site cannot be registered for is left behind",
        "deploy/federation.py",
        "            shutil.rmtree(own)\n",
        "            pass\n",
        "tests/deploy/test_federation_folder.py",
    ),
    Mutant(
        "the doctor goes straight where the node goes by a proxy",
        "deploy/doctor.py",
        "    if (by := _proxy(node)) is None:\n",
        "    if (by := _proxy(node)) is None or True:\n",
        "tests/deploy/test_doctor.py",
    ),
    Mutant(
        "a newcomer's visits all draw the same",
        "deploy/adapt.py",
        'seed_for(seed, "adapt", run.place, client, number)',
        'seed_for(seed, "adapt", run.place, client)',
        "tests/cli/test_adapt.py",
    ),
    Mutant(
        "FLIC: FedHeNN drives features apart",
        "training/alignment.py",
        "self.strength * (1 - distances.cka(",
        "self.strength * (1 + distances.cka(",
        "tests/algorithms/test_flic.py",
    ),
    Mutant(
        "FLIC: a client sends anchors of classes that it does not hold",
        "algorithms/flic.py",
        "for key, leaf in moved.items() for place in held}",
        "for key, leaf in moved.items() for place in range(len(leaf))}",
        "tests/algorithms/test_flic.py",
    ),
    Mutant(
        "FLIC: features are pre-trained in every visit",
        "algorithms/flic.py",
        "if keeps and new and self.anchors.pretrain_epochs:",
        "if keeps and self.anchors.pretrain_epochs:",
        "tests/algorithms/test_flic.py",
    ),
    Mutant(
        "FLIC: a covariance divides by n",
        "training/distances.py",
        "    scale = hot @ (counts - 1).clamp(min=1).rsqrt()  # 0",
        "    scale = hot @ counts.clamp(min=1).rsqrt()  # 0",
        "tests/algorithms/test_distances.py",
    ),
    Mutant(
        "FLIC: the map of Algorithm S3 is not made orthonormal",
        "algorithms/flic_s3.py",
        'torch.linalg.qr(server["map"] + mean["map"])[0]',
        'server["map"] + mean["map"]',
        "tests/algorithms/test_flic.py",
    ),
    Mutant(
        "attackers do not depend on the seed",
        "attacks/attack.py",
        'seeds_for(seed, "attack", names=names)',
        'seeds_for(0, "attack", names=names)',
        "tests/attacks/test_label_flipping.py",
    ),
    Mutant(
        "an attacker is tested on what it made of its labels",
        "attacks/relabelled.py",
        "        return self.client.test\n",
        "        return ClientData(self.client.test.x, torch.from_numpy(self.labels)[self.client.test.y])\n",
        "tests/attacks/test_label_flipping.py",
    ),
    Mutant(
        "a star draws its attackers of all clients",
        "running/phase_run.py",
        "grouping = attack.groups_of or self.phase.orchestration\n",
        "grouping = self.phase.orchestration\n",
        "tests/attacks/test_label_flipping.py",
    ),
    Mutant(
        "an eavesdropper hears the server along a chain",
        "attacks/eavesdrop.py",
        "            down = relay(context.algorithm.uplink, down, receive(context, task, down, reply))\n",
        "            receive(context, task, down, reply)\n",
        "tests/attacks/test_gan_recovery.py",
    ),
    Mutant(
        "the partition ignores the seed",
        "data/federation.py",
        'numpy_generator(seed, "data", "partition")',
        'numpy_generator(0, "data", "partition")',
        "tests/data",
    ),
    Mutant(
        "the validation cut ignores the seed",
        "data/dividing.py",
        'rng = numpy_generator(seed, "data", "validation")',
        'rng = numpy_generator(0, "data", "validation")',
        "tests/data",
    ),
    Mutant(
        "a visit's seed ignores the round",
        "running/round_book.py",
        'return self.run.experiment.seed, "visit", self.run.place, number',
        'return self.run.experiment.seed, "visit", self.run.place, 0',
        "tests/laws/test_provenance.py",
    ),
    Mutant(
        "a second visit draws the seed of the first",
        "running/round_book.py",
        "return seed_for(*self._where(), client) if visit == 0 else seed_for(*self._where(), client, visit)",
        "return seed_for(*self._where(), client)",
        "tests/laws/test_provenance.py",
    ),
    Mutant(
        "the summary takes another round than the last evaluated",
        "results/summary.py",
        "max((number for number in evaluated if number > 0), default=None)",
        "min((number for number in evaluated if number > 0), default=None)",
        "tests/report tests/laws/test_provenance.py",
    ),
    Mutant(
        "a sweep chooses by test samples",
        "plan/sweep.py",
        'if ("validation_" in name) == chosen_by',
        'if ("validation_" in name) != chosen_by',
        "tests/cli/test_sweep.py",
    ),
    Mutant(
        "uploads that are remembered are pooled all the same",
        "engines/session.py",
        "return same and not self.looked_at and not self.task.local_labels",
        "return same and not self.task.local_labels",
        "tests/laws/test_provenance.py tests/cli/test_forget.py tests/engines",
    ),
    Mutant(
        "the path on record is another one",
        "engines/trainer.py",
        "self.count(kernel.name, len(sizes))",
        'self.count("sample-space", len(sizes))',
        "tests/laws/test_provenance.py",
    ),
    Mutant(
        "a kernel's failure goes unsaid",
        "engines/trainer.py",
        "warnings.warn(says, HansaWarning, stacklevel=2)",
        "del says",
        "tests/engines",
    ),
    Mutant(
        "the phase ends with its last model although another was best",
        "running/loop.py",
        "run.return_to_best()",
        "pass",
        "tests/core",
    ),
    Mutant(
        "the best is chosen on test samples",
        "running/loop.py",
        'names = (f"validation_{headline.name}"',
        'names = (f"test_{headline.name}"',
        "tests/laws/test_provenance.py",
    ),
    Mutant(
        "a client never visited counts as visited",
        "running/ledger.py",
        'torch.from_numpy(self._columns["visits"] > 0)',
        'torch.from_numpy(self._columns["visits"] > -1)',
        "tests/core tests/report tests/laws",
    ),
    Mutant(
        "SCAFFOLD's shift has the wrong sign",
        "algorithms/scaffold.py",
        "Correction(shift=subtract(control, own))",
        "Correction(shift=subtract(own, control))",
        "tests/algorithms/test_corrected.py",
    ),
    Mutant(
        "SCAFFOLD's server divides by the cohort",
        "algorithms/scaffold.py",
        'scale(pick("control", cohort.sums), 1 / total_weight(self.weights, task))',
        'scale(pick("control", cohort.sums), 1 / cohort.weight)',
        "tests/algorithms/test_corrected.py",
    ),
    Mutant(
        "FedDyn divides by the cohort, not the population",
        "algorithms/feddyn.py",
        "share = self.alpha / total_weight(self.weights, task)",
        "share = self.alpha / cohort.weight",
        "tests/algorithms/test_corrected.py",
    ),
    Mutant(
        "FedDyn's server takes a chain's whole way for its clients' steps",
        "algorithms/feddyn.py",
        'total, before = pick("dual", cohort.sums), pick("dual", server)',
        'total, before = pick("model", cohort.sums), pick("dual", server)',
        "tests/laws/test_sequential.py",
    ),
    Mutant(
        "an asynchronous chain may stay at a superclient",
        "orchestrate/fedasyncseq.py",
        "before = _elsewhere(self._drawn(round), before)",
        "before = self._drawn(round)[: len(before)]",
        "tests/laws/test_sequential.py",
    ),
    Mutant(
        "the order in a chain is the same in every round",
        "orchestrate/superclients.py",
        'order = _permutation(roster.seed, "order", round, len(roster.names))',
        'order = _permutation(roster.seed, "order", 0, len(roster.names))',
        "tests/laws/test_sequential.py",
    ),
    Mutant(
        "models under way are left behind at the end of a phase",
        "running/loop.py",
        "merges = planner.merges(run.cohort) or run.round + 1 == run.phase.rounds",
        "merges = planner.merges(run.cohort)",
        "tests/laws/test_sequential.py",
    ),
    Mutant(
        "clients are tested on public samples",
        "data/federation.py",
        "common(data.test, others(len(data.test), public))",
        "common(data.test, np.arange(len(data.test)))",
        "tests/orchestrate",
    ),
    Mutant(
        "a FedAvg client drops its weight",
        "training/averaging.py",
        "step = displacement(self.local.moving(trained.params), self.local.moving(turn.start), weight)",
        "step = displacement(self.local.moving(trained.params), self.local.moving(turn.start), 1.0)",
        "tests/algorithms",
    ),
    Mutant(
        "server optimisers move buffers",
        "training/averaging.py",
        "weights = {key: leaf for key, leaf in delta.items() if key not in task.buffers}",
        "weights = dict(delta)",
        "tests/algorithms tests/laws",
    ),
    Mutant(
        "Mime's two exchanges visit two cohorts",
        "running/phase_run.py",
        "return self.round // self.algorithm.exchanges",
        "return self.round",
        "tests/algorithms tests/laws",
    ),
    Mutant(
        "the mask of local labels is forgotten in evaluation",
        "engines/evaluation.py",
        "return only(torch.stack([one.task.labels for one in found if one.task.labels is not None])[:, None], out)",
        "return out",
        "tests/algorithms/test_oll.py tests/engines",
    ),
    Mutant(
        "the stacked kernel counts padding",
        "engines/kernels/stacked.py",
        "        counted = self._counts(batch >= 0, rows)\n",
        "        counted = self._counts(torch.ones_like(batch, dtype=torch.bool), rows)\n",
        "tests/engines",
    ),
    Mutant(
        "a client of weighed samples counts as their number",
        "training/averaging.py",
        'return data.mass if weights == "samples"',
        'return float(len(data)) if weights == "samples"',
        "tests/laws/test_sample_weights.py",
    ),
    Mutant(
        "a batch of a measured gradient counts as its number of samples",
        "training/local.py",
        "ClientData(*batches[0]).mass",
        "len(batches[0][1])",
        "tests/laws/test_sample_weights.py",
    ),
    Mutant(
        "Adam forgets its memory between visits when stacked",
        "engines/kernels/stacked.py",
        "self.stepper = Stepper(turn, self.own, memory, stacked=len(bundle))",
        "self.stepper = Stepper(turn, self.own, {}, stacked=len(bundle))",
        "tests/engines",
    ),
    Mutant(
        "Adam's weight decay escapes the clipping of gradients",
        "training/stepper.py",
        "turn.direction != PLAIN or self.training.clip is not None\n",
        "turn.direction != PLAIN\n",
        "tests/algorithms/test_local_training.py -k clipped",
    ),
    Mutant(
        "clipping looks at one leaf at a time",
        "training/stepper.py",
        "squares = sum(slope.square().flatten(self.dims).sum(-1) for slope in gradients.values())",
        "squares = next(slope.square().flatten(self.dims).sum(-1) for slope in gradients.values())",
        "tests/algorithms tests/engines",
    ),
    Mutant(
        "layers draw from whatever was drawn before",
        "training/local.py",
        "generator.manual_seed(seed)",
        "pass",
        "tests/algorithms tests/laws",
    ),
    Mutant(
        "a later turn draws the first one's batches",
        "training/visits.py",
        'return seed if number == 0 else seed_for(seed, "turn", number)',
        "return seed",
        "tests/algorithms tests/engines tests/laws",
    ),
    Mutant(
        "pFedMe's anchor does not follow",
        "training/local.py",
        "self.anchor[key].lerp_(self.weights[key].detach(), follow)",
        "pass",
        "tests/algorithms",
    ),
    Mutant(
        "the meta-gradient adapts in the wrong direction",
        "training/directions.py",
        "found = slope(moved(weights, slope(weights), -self.alpha), 1)",
        "found = slope(moved(weights, slope(weights), self.alpha), 1)",
        "tests/algorithms",
    ),
    Mutant(
        "pooled clients are charged nothing",
        "engines/together.py",
        "reply = CohortReply(clients, 0, np.array([sizes[id(part)] for part in parts]), flops)",
        "reply = CohortReply(clients, 0, 0, flops)",
        "tests/engines tests/laws",
    ),
    Mutant(
        "the hand-over is charged at every visit",
        "running/ledger.py",
        "bytes_down[row] += reply.bytes_down + (setup_bytes if first else 0)",
        "bytes_down[row] += reply.bytes_down + setup_bytes",
        "tests/laws",
    ),
    Mutant(
        "evaluations on clients' samples are not charged",
        "running/evaluate.py",
        'run.ledger.add_evaluation(rows["client"].numpy(), _served_bytes(run, rows["client"], served) + sent)',
        "pass",
        "tests/laws/test_provenance.py",
    ),
    Mutant(
        "a leaf is averaged over those who did not send it",
        "payload.py",
        "return {key: leaf / (self.weight - self.without.get(key, 0.0)) for key, leaf in self.sums.items()}",
        "return {key: leaf / self.weight for key, leaf in self.sums.items()}",
        "tests/core/test_payload.py",
    ),
    Mutant(
        "models under way are lost at a resume",
        "running/phase_run.py",
        'self.store.put(f"{self.index}/line", line_now.tree(), str(number))',
        "pass",
        "tests/laws -k resumed",
    ),
    Mutant(
        "a row of the checkpoint is known without its client",
        "io/store.py",
        'told = f"{len(name)},{len(client)},{name}{client}".encode() + digest',
        "told = name.encode() + digest",
        "tests/core/test_store.py",
    ),
    Mutant(
        "records may be lost that a commit knows",
        "results/writer.py",
        "            sync(self._rounds)",
        "            pass",
        "tests/core/test_resuming.py",
    ),
    Mutant(
        "inputs may change before a resume",
        "data/digests.py",
        "digest(digest_inputs(samples.x), digest_pieces([samples.y]))",
        "digest_pieces([samples.y])",
        "tests/data/test_digests.py",
    ),
    Mutant(
        "a folder is looked at before it is taken and not after",
        "results/writer.py",
        "self._must_be_new()  # another run may have come and gone meanwhile",
        "pass",
        "tests/cli/test_ownership.py -k many",
    ),
    Mutant(
        "the clients of a chain all start from its first message",
        "engines/chained.py",
        "lanes[number].down | algorithm.upload(model)",
        "lanes[number].down",
        "tests/engines/test_abreast.py",
    ),
    Mutant(
        "pictures are standardised by validation samples too",
        "data/federation.py",
        "fit_pixels(data.train, division.train.values())",
        "fit_pixels(data.train, [np.arange(len(data.train))])",
        "tests/data/test_pixel_scale.py",
    ),
    Mutant(
        "held-out clients stay among those that train",
        "data/cuts.py",
        "for name, index in parts.items() if name not in gone",
        "for name, index in parts.items()",
        "tests/data/test_cuts.py",
    ),
    Mutant(
        "a cost forgets what a first visit brings",
        "running/cost.py",
        '0 if columns["visits"][at] else run.setup_bytes_of(visit.client)',
        "0",
        "tests/laws/test_predicted_cost.py",
    ),
    Mutant(
        "table scaling looks at test rows",
        "data/federation.py",
        "data.rule.fit(data.train.x[division.trained()])",
        "data.rule.fit(data.train.x)",
        "tests/data",
    ),
    Mutant(
        "Krum has one neighbour too few",
        "server/robust_rules.py",
        "[:, 1 : n - self.byzantine - 1]",
        "[:, 1 : n - self.byzantine - 2]",
        "tests/algorithms/test_robust.py",
    ),
    Mutant(
        "Fed3R forgets nothing",
        "algorithms/fed3r.py",
        "left = from_tree(server) - from_tree(gone.sums)",
        "left = from_tree(server)",
        "tests/algorithms/test_fed3r.py",
    ),
    Mutant(
        "default rates forget the run that is continued",
        "plan/rates.py",
        "before = Before.of_run(plan.start.run, trust) if plan.start is not None else Before()",
        "before = Before()",
        "tests/core/test_pipeline.py tests/core/test_plans.py",
    ),
    Mutant(
        "trust is not asked for",
        "io/trust.py",
        "require(trust.admits(path), ",
        "require(True, ",
        "tests/core/test_trust.py",
    ),
    Mutant(
        "trust in a module reaches what it imported",
        "io/trust.py",
        "require(path in trust.patterns or trust.covers(home), ",
        "require(True, ",
        "tests/core/test_trust.py -k imported",
    ),
    Mutant(
        "trust in a package reaches its namesakes",
        "io/trust.py",
        'any(f"{module}.".startswith(one[:-1])',
        "any(module.startswith(one[:-2])",
        "tests/core/test_trust.py -k admits",
    ),
    Mutant(
        "trust is not asked for an import path in a setting",
        "io/codec.py",
        "return _admitted(value, where, reading) if value is not None and names_code(hint) else value",
        "return value",
        "tests/core/test_trust.py -k smuggle",
    ),
    Mutant(
        "a site trusts every letter",
        "engines/site.py",
        "self.clients, self._state, self.trust)",
        'self.clients, self._state, Trust(("*",)))',
        "tests/laws/test_sites_elsewhere.py -k foreign",
    ),
    Mutant(
        "a site listens to an old server",
        "engines/site.py",
        'newer = letter.lease >= note["lease"]',
        "newer = True",
        "tests/laws/test_sites_elsewhere.py -k old_server",
    ),
    Mutant(
        "a site listens to a letter twice",
        "engines/site.py",
        'letter.number <= note["number"]',
        'letter.number < note["number"]',
        "tests/laws/test_sites_elsewhere.py -k latest",
    ),
    Mutant(
        "a site goes on from the state it had last, whatever the server counts on",
        "engines/site.py",
        'version = self.versions.get((depth, client), "")',
        'version = max((name[6:] for name, of in self.store._trees if of == client), default="")',
        "tests/laws/test_sites_elsewhere.py -k killed_and_resumed",
    ),
    Mutant(
        "a record that waits for its evaluation is lost at a resume",
        "running/loop.py",
        'record = progress.get("held")',
        "record = None",
        "tests/laws/test_sites_elsewhere.py -k killed_and_resumed",
    ),
    Mutant(
        "sites keep every state",
        "engines/state_versions.py",
        "self.superseded.setdefault(client, []).extend(gone)",
        "pass",
        "tests/laws/test_sites_elsewhere.py -k forget",
    ),
    Mutant(
        "rows are believed whatever clients they are about",
        "engines/far_rows.py",
        "known = bool(numbers) and set(numbers) <= set(range(len(places))) and len(set(numbers)) == len(numbers)",
        "known = True",
        "tests/laws/test_sites_elsewhere.py -k rows",
    ),
    Mutant(
        "a site sends its upload as it is, whatever the plan says",
        "engines/site.py",
        "if not errands.summed:",
        "if True:",
        "tests/laws/test_sites_elsewhere.py -k under_masks",
    ),
    Mutant(
        "a site is in sums of any number of clients",
        "engines/site_members.py",
        "require(terms.least >= self.keys.fewest,",
        "require(True,",
        "tests/laws/test_sites_elsewhere.py -k insists",
    ),
    Mutant(
        "a site that insists on secure sums sends uploads without",
        "engines/site.py",
        "require(open_,",
        "require(True,",
        "tests/laws/test_sites_elsewhere.py -k insists",
    ),
    Mutant(
        "a site that insists on secure sums evaluates whatever phase",
        "engines/site.py",
        "            self._require_sum(errands)\n            self._counting_on",
        "            self._counting_on",
        "tests/laws/test_sites_elsewhere.py -k means_of_classes",
    ),
    Mutant(
        "clients of a secure sum tell means of their classes for exhibits",
        "engines/evaluation.py",
        " and not isinstance(side.algorithm, Summed)",
        "",
        "tests/laws/test_sites_elsewhere.py -k means_of_classes",
    ),
    Mutant(
        "parts of several GPUs make one",
        "engines/cluster.py",
        "gpus * int(1 / self.gpus + 1e-9)",
        "int(gpus / self.gpus + 1e-9)",
        "tests/engines/test_cluster.py -k share_a_gpu",
    ),
    Mutant(
        "words under masks are added whatever their shape",
        "channels/fixed_point.py",
        "require(good == wanted,",
        "require(True,",
        "tests/laws/test_sites_elsewhere.py -k odd_messages",
    ),
    Mutant(
        "a visit made ahead goes on from the state before the letter",
        "engines/far_session.py",
        "latest.get(client, before[-1])",
        "before[-1]",
        "tests/laws/test_sites_elsewhere.py -k errand_between",
    ),
    Mutant(
        "a worker trusts every message",
        "engines/worker.py",
        "Trust(tuple(trusted))",
        'Trust(("*",))',
        "tests/engines/test_worker_trust.py",
    ),
    Mutant(
        "a worker looks in a folder that nobody trusts",
        "engines/connection.py",
        '[sys.executable, "-P", "-m"',
        '[sys.executable, "-m"',
        "tests/cli/test_opening.py -k current",
    ),
    Mutant(
        "the command line looks in a folder that nobody trusts",
        "cli/options.py",
        "    if trust:\n",
        "    if True:\n",
        "tests/cli/test_opening.py -k current",
    ),
    Mutant(
        "system noise comes from a seed",
        "channels/noise.py",
        "return _from_system(shape) if rng is None else",
        "rng = rng or torch.Generator().manual_seed(0)\n    return",
        "tests/channels tests/core/test_privacy.py",
    ),
    Mutant(
        "a private sum is divided by who answered",
        "algorithms/private.py",
        "float(task.cohort or task.population)",
        "cohort.weight",
        "tests/algorithms/test_private.py",
    ),
    Mutant(
        "only the first leaf of a private upload is measured",
        "algorithms/private.py",
        "length = norm(up.sums) / up.weight",
        "length = norm(dict(list(up.sums.items())[:1])) / up.weight",
        "tests/algorithms/test_private.py",
    ),
    Mutant(
        "secret draws are booked as if a client took nobody's place",
        "channels/accounting.py",
        "library.GaussianDpEvent(multiplier / 2)",
        "library.GaussianDpEvent(multiplier)",
        "tests/channels",
    ),
    Mutant(
        "forgetting releases with the noise of before",
        "algorithms/fed3r.py",
        'again = self._noised(task, left, f"forget {int(number)}")',
        "again = from_tree(server, RELEASE) - from_tree(gone.sums)",
        "tests/core/test_privacy.py",
    ),
    Mutant(
        "forgetting is not booked",
        "algorithms/fed3r.py",
        'number = server[f"{RELEASE}.number"] + 1',
        'number = server[f"{RELEASE}.number"] + 0',
        "tests/core/test_privacy.py",
    ),
    Mutant(
        "the exact sums stay beside a release",
        "algorithms/fed3r.py",
        "if self.keep_sums else {}\n        return nest(RELEASE",
        "if True else {}\n        return nest(RELEASE",
        "tests/core/test_privacy.py",
    ),
    Mutant(
        "the ledger forgets earlier phases",
        "running/privacy.py",
        "return [*(_phases(run.previous) if run.previous else ()), run]",
        "return [run]",
        "tests/core/test_privacy.py",
    ),
    Mutant(
        "a chain that is measured forgets its clients' states",
        "running/forgetting.py",
        "self.states |= {client: reply.state} if reply.state else {}",
        "self.states |= {}",
        "tests/orchestrate/test_forgetting.py",
    ),
    Mutant(
        "a chain that is measured draws a client's second visit like its first",
        "running/forgetting.py",
        "self.book.seed(client, visit)",
        "self.book.seed(client, 0)",
        "tests/orchestrate/test_forgetting.py",
    ),
    Mutant(
        "forgetting counts the last client too",
        "running/forgetting.py",
        "list(own.items())[:-1]",
        "list(own.items())",
        "tests/orchestrate/test_forgetting.py",
    ),
    Mutant(
        "the next phase's `before` tells what a chain forgot",
        "running/loop.py",
        "if not name.startswith(CHAIN)}",
        "if name}",
        "tests/orchestrate/test_forgetting.py",
    ),
    Mutant(
        "simulated time is read off the last round alone",
        "results/points.py",
        'float(clock["end"] - clock["start"])',
        'float(clock["end"])',
        "tests/report/test_chains.py",
    ),
    Mutant(
        "prototypes are sent in the order of names",
        "algorithms/prototypes.py",
        "prototypes.flatten(1).sum(1).argsort(stable=True)",
        "torch.arange(len(names))",
        "tests/algorithms/test_prototypes.py -k names",
    ),
    Mutant(
        "prototypes of classes that a client lacks are predicted",
        "algorithms/prototypes.py",
        "torch.where(known, offsets, NONE)[None]",
        "offsets[None]",
        "tests/algorithms/test_prototypes.py -k nearest_of_its_own",
    ),
    Mutant(
        "prototypes of more samples than there are count",
        "algorithms/prototypes.py",
        "min(counts) >= 0 and sum(counts) <= up.weight",
        "min(counts) >= 0",
        "tests/algorithms/test_prototypes.py -k no_client_can_send",
    ),
    Mutant(
        "prototypes look for samples that only fill up a batch",
        "training/contrast.py",
        "others if there is None else others & there",
        "others",
        "tests/algorithms/test_contrast.py -k fill_up",
    ),
    Mutant(
        "prototypes are trained by the settings of every other algorithm",
        "io/codec.py",
        "functools.partial(dataclasses.replace, default) if type(default) is cls else cls",
        "cls",
        "tests/algorithms/test_prototypes.py -k leaves_out",
    ),
    Mutant(
        "a client that dropped out stays in the masks of the others",
        "channels/masking.py",
        "            total = _add(total, _negated(pair) if _adds(self.terms, other, name) else pair)\n",
        "            total = _add(total, pair if _adds(self.terms, other, name) else _negated(pair))\n",
        "tests/channels/test_masking.py",
    ),
    Mutant(
        "a client opens sums of fewer than the threshold",
        "channels/masking.py",
        "require(len(names) >= terms.threshold,",
        "require(True,",
        "tests/channels/test_masking.py",
    ),
    Mutant(
        "a client that is said to have dropped out tells shares all the same",
        "channels/masking.py",
        "self.name in names and set(names)",
        "set(names)",
        "tests/channels/test_masking.py -k hides",
    ),
    Mutant(
        "a client tells shares of those who masked by others than it did",
        "channels/masking.py",
        '            require_signed(self.registered[other], signed, terms.bound("masked",',
        '            assert (self.registered[other], signed, terms.bound("masked",',
        "tests/channels/test_masking.py -k hides",
    ),
    Mutant(
        "a site forgets at a restart which sums it has drawn secrets for",
        "engines/site.py",
        '"sum": self.members.since',
        '"sum": -1',
        "tests/laws/test_sites_elsewhere.py -k no_sum_twice",
    ),
    Mutant(
        "a client takes masking keys that nobody signed",
        "channels/masking.py",
        '            require_signed(self.registered[other], signed, terms.bound("masking",',
        '            assert (self.registered[other], signed, terms.bound("masking",',
        "tests/channels/test_masking.py",
    ),
    Mutant(
        "a client does not add a stream of its own",
        "channels/masking.py",
        "        total = _add(numbers, _stream(mine.own, numbers))\n",
        "        total = numbers\n",
        "tests/channels/test_masking.py",
    ),
    Mutant(
        "what top-k does not send is lost",
        "training/carried.py",
        "leaf + up.weight * kept[key] if key in kept else leaf",
        "leaf",
        "tests/channels/test_compression.py",
    ),
    Mutant(
        "quantisation rounds down always",
        "channels/quantise.py",
        "torch.rand(leaf.shape, generator=rng) < exact - lower",
        "torch.rand(leaf.shape, generator=rng) < 0 * lower",
        "tests/channels/test_compression.py",
    ),
    Mutant(
        "shares of noise are for all who are asked, not for the threshold",
        "algorithms/private.py",
        "math.sqrt(task.opened or 1)",
        "math.sqrt(task.population or 1)",
        "tests/laws/test_channels.py -k noise",
    ),
    Mutant(
        "to look whether an archive has an array reads it",
        "data/sources/npz.py",
        "        return name in self._names\n",
        "        return super().__contains__(name)\n",
        "tests/data/test_sources.py -k archive",
    ),
    Mutant(
        "a large weight makes pieces small",
        "io/flops.py",
        "not any(one.alias_info for one in function._schema.returns)",
        "True",
        "tests/features/test_feature_cache.py -k pieces",
    ),
    Mutant(
        "pictures of a phase's start still show who was forgotten",
        "deploy/forget.py",
        '        store.drop(f"{index}/exhibits/0")',
        "        pass",
        "tests/report/test_exhibits.py -k forgotten",
    ),
    Mutant(
        "a short phase is not told how its messages grow",
        "running/rehearsal.py",
        "if not growing or phase.rounds",
        "if not growing or growing or phase.rounds",
        "tests/cli/test_cost.py -k grow",
    ),
)


def tried(mutant: Mutant, copy: Path) -> bool:
    """Put a mistake into a copy of the package; whether some test notices."""
    file = copy / "hansa" / mutant.file
    right = file.read_text(encoding="utf-8")
    file.write_text(mutant.applied(SOURCE), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *mutant.tests.split()]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True, check=False
        )
    finally:
        file.write_text(right, encoding="utf-8")
    return "\nFAILED " in done.stdout  # a test that fails, not one that cannot be read


def main() -> None:
    """Try all mutants, or those whose name contains a word; exit with 1 where one survives."""
    words = sys.argv[1:]
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE, Path(folder) / "hansa")
        for mutant in chosen:
            killed = tried(mutant, Path(folder))
            survivors += [] if killed else [mutant.name]
            print(f"{'killed  ' if killed else 'SURVIVED'}  {mutant.name}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
