"use strict";

// The dialog for operators' acts: fields of the act, what it would do, and doing it with the token.

const FIELDS = {
  until: { label: "Until (a time, or a duration such as 10m; empty: until it is resumed)" },
  borrower: { label: "Borrower", list: "borrowers" },
  stream: { label: "Stream, such as flights.0.3" },
  only: { label: "Only this stream (empty: all)", name: "stream" },
  to: { label: "To: earliest, latest, a time, a duration back from now such as 2h, or an offset" },
  shift: { label: "or shift by so many messages (back if below 0)", type: "number" },
  force: { label: "Also if it has consumers: they get an error and end", type: "checkbox" },
  confirm: { label: "Type the subscription to confirm" },
};

const ACTS = {
  pause: { title: "Pause", fields: ["until"], means: "No messages are handed out beyond what is under way; progress stays." },
  resume: { title: "Resume", fields: [], means: "Ends a pause: the streams are granted again." },
  rebalance: { title: "Rebalance", fields: [], means: "Spreads the streams evenly with the fewest moves; moves by hand are forgotten." },
  drain: { title: "Drain a borrower", fields: ["borrower"], means: "Its streams go to the others; it gets none until it is undrained." },
  undrain: { title: "Undrain a borrower", fields: ["borrower"], means: "It may have streams again." },
  move: { title: "Move a stream", fields: ["stream", "borrower"], means: "It stays with that borrower until that one goes, or a rebalance." },
  release: { title: "Release a stream", fields: ["stream"], means: "Takes it from its owner now. What that one has not committed may be delivered twice." },
  step_down: { title: "Step down", fields: [], means: "The leader resigns, another one follows; the borrowers keep their streams." },
  reset: { title: "Reset", fields: ["to", "shift", "only"], means: "The group goes on elsewhere, while it runs." },
  delete: { title: "Delete", fields: ["force", "confirm"], means: "The group is deleted with its progress and its history." },
};

class Asking {
  constructor(dialog) {
    this.dialog = dialog;
    this.act = null;
    this.subscription = null;
    const on = (name, work) => dialog.querySelector(`[data-do=${name}]`).addEventListener("click", work);
    on("show", () => this.ask(true));
    on("execute", () => this.ask(false));
    on("close", () => dialog.close());
    dialog.querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); this.ask(true); });
  }

  part(selector) { return this.dialog.querySelector(selector); }

  open(act, subscription, owners) {
    const { title, fields, means } = ACTS[act];
    this.act = act;
    this.subscription = subscription;
    this.part("h2").textContent = `${title}: ${subscription}`;
    this.part(".meaning").textContent = means;
    this.part(".fields").replaceChildren(...fields.map((name) => this.field(name)));
    this.part("#borrowers").replaceChildren(...owners.slice(0, 200).map((owner) => {
      const option = document.createElement("option");
      option.value = owner;
      return option;
    }));
    this.part("[name=token]").value = sessionStorage.getItem("token") ?? "";
    this.say("", null);
    this.dialog.showModal();
  }

  field(name) {
    const { label, type, list, name: as } = FIELDS[name];
    const holder = document.createElement("label");
    const input = document.createElement("input");
    input.name = as ?? name;
    input.type = type ?? "text";
    input.autocomplete = "off";
    if (list !== undefined) input.setAttribute("list", list);
    if (type === "checkbox") holder.append(input, label); else holder.append(label, input);
    return holder;
  }

  wanted(dry) {
    const body = { subscription: this.subscription, act: this.act, dry_run: dry };
    for (const input of this.dialog.querySelectorAll(".fields input")) {
      if (input.type === "checkbox") body[input.name] = input.checked;
      else if (input.value !== "") body[input.name] = input.type === "number" ? Number(input.value) : input.value;
    }
    return body;
  }

  say(text, lines) {
    this.part(".answer").textContent = text;
    this.part(".says").hidden = lines === null;
    this.part(".says").textContent = (lines ?? []).join("\n");
  }

  async ask(dry) {
    const token = this.part("[name=token]").value;
    if (token === "") { this.say("Give the token first.", null); return; }
    this.say("…", null);
    const buttons = this.dialog.querySelectorAll("[data-do]");
    for (const button of buttons) button.disabled = true;
    try {
      const response = await fetch("/api/act", {
        method: "POST",
        headers: { "Authorization": `Bearer ${token}`, "Content-Type": "application/json" },
        body: JSON.stringify(this.wanted(dry)),
      });
      const said = await response.json();
      if (response.status === 401) sessionStorage.removeItem("token"); else sessionStorage.setItem("token", token);
      if (said.error !== undefined) this.say(said.error, null);
      else this.say(said.done ? "done:" : "this would be done; nothing was changed:", said.says);
    } catch (error) {
      this.say(`no answer (${error.message}): it was done, or it was not; look at what happened`, null);
    } finally {
      for (const button of buttons) button.disabled = false;
    }
  }
}
