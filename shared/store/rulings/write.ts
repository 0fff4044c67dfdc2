/**
 * Rulings of a policy on a resource that is written. The keys that its row will hold decide before the write;
 * where they cannot, PostgreSQL decides after it, so such writes run in a transaction. The write constraints of
 * the policy are evaluated in memory.
 */
import { keepPaths } from '../../access/fields/paths.ts'
import { withoutSecrets } from '../../access/fields/secrets.ts'
import type { Grant } from '../../access/grant.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { forbidden, forbiddenBecause } from '../../errors.ts'
import { typeName } from '../../fhir/definitions.ts'
import type { Resource } from '../../fhir/resource.ts'
import type { Store } from '../rows/context.ts'
import { heldRow } from '../search/tests/row-decisions.ts'
import type { Prepared } from '../write/prepare.ts'
import { ask, type Ruling } from './rows.ts'
import { hiddenBy, needsSql, rulingOf } from './rulings.ts'

type Writing = 'create' | 'update'

export function readonlyBy(ruling: Ruling): readonly string[] {
  return ruling === undefined || ruling === 'all' ? [] : ruling.readonly
}

/**
 * Drops what the caller may not set, which can change who governs the rest. `ruling` undefined: it is to
 * be ruled on when it is written. Errors: 403.
 */
export function ruleOnNew(
  store: Store,
  principal: Principal,
  sent: Resource,
  prepare: (resource: Resource) => Prepared,
): { readonly prepared: Prepared; readonly ruling: Ruling } {
  const type = sent.resourceType
  const grants = grantsFor(principal, type, 'create')
  if (grants === undefined) return { prepared: prepare(sent), ruling: 'all' }
  if (needsSql(store, principal, type, 'create')) {
    requireTransaction(store)
    const left = keepPaths(sent, undefined, grants.flatMap(pathsOf))
    return { prepared: prepare(left), ruling: undefined }
  }
  const dropped: string[] = []
  let prepared = prepare(sent)
  // Each turn drops something or is the last.
  for (;;) {
    const ruling = rulingAfter(store, principal, 'create', prepared)
    if (ruling === undefined) throw forbidden(after('create'))
    const more = ruling === 'all' ? [] : pathsOf(ruling).filter((path) => !dropped.includes(path))
    if (more.length === 0) {
      check(ruling, undefined, prepared)
      return { prepared, ruling }
    }
    dropped.push(...more)
    prepared = prepare(keepPaths(sent, undefined, dropped))
  }
}

function pathsOf({ hidden, readonly }: Grant): readonly string[] {
  return [...hidden, ...readonly]
}

/** Undefined: it is to be ruled on when it is written. Errors: 403. */
export function ruleOnChange(
  store: Store,
  principal: Principal,
  prepared: Prepared,
  stored: Resource | undefined,
): Ruling {
  if (needsSql(store, principal, prepared.resource.resourceType, 'update')) {
    requireTransaction(store)
    return undefined
  }
  const ruling = rulingAfter(store, principal, 'update', prepared)
  if (ruling === undefined) throw forbidden(after('update'))
  check(ruling, stored, prepared)
  return ruling
}

/** A refusal must undo the write. */
function requireTransaction({ deferred }: Store): void {
  if (deferred === undefined) throw new Error('This policy is applied inside a transaction')
}

interface WrittenVersion {
  readonly prepared: Prepared
  readonly decided: Ruling
  readonly stored: Resource | undefined
}

/** Asks PostgreSQL when nothing else has decided. Errors: 403, which the transaction must not survive. */
export async function ruleOnWritten(
  store: Store,
  principal: Principal,
  interaction: Writing,
  { prepared, decided, stored }: WrittenVersion,
): Promise<Ruling> {
  if (decided !== undefined) return decided
  const { project, id, type } = prepared.write
  const [found] = await ask(store, principal, typeName(type), {
    project,
    ids: [id],
    asked: [interaction],
  })
  const ruling = found?.[interaction]
  if (ruling === undefined) throw forbidden(after(interaction))
  check(ruling, stored, prepared)
  return ruling
}

/** The paths that the caller does not see of the new version; where only PostgreSQL knows, all that may be hidden. */
export function hiddenAfter(
  store: Store,
  principal: Principal,
  prepared: Prepared,
): readonly string[] {
  const { resourceType: type } = prepared.resource
  if (needsSql(store, principal, type, 'read')) {
    return (grantsFor(principal, type, 'read') ?? []).flatMap(({ hidden }) => hidden)
  }
  return hiddenBy(rulingAfter(store, principal, 'read', prepared))
}

function rulingAfter(
  store: Store,
  principal: Principal,
  interaction: Writing | 'read',
  { write, resource, rows }: Prepared,
): Ruling {
  const held = () => heldRow(write.id, rows())
  return rulingOf(store, principal, {
    type: resource.resourceType,
    interaction,
    project: write.project,
    held,
  })
}

function check(ruling: Ruling, before: Resource | undefined, { resource }: Prepared): void {
  if (ruling === undefined || ruling === 'all') return
  checkConstraints(ruling, before, resource)
}

function after(interaction: Writing): string {
  return `criteria of every entry for ${interaction}, by what would be stored`
}

/**
 * Exactly one `true` lets the write through; a failing evaluation does not. Constraints read no secrets: members whose
 * policy names AccessPolicy write constraints, too. Errors: 403.
 */
function checkConstraints(
  { constraints, source }: Pick<Grant, 'constraints' | 'source'>,
  stored: Resource | undefined,
  next: Resource,
): void {
  if (constraints.length === 0) return
  const before = stored === undefined ? [] : withoutSecrets(stored)
  const after = withoutSecrets(next)
  for (const { name, run, variables } of constraints) {
    if (!holds(() => run(after, { ...variables, before, after }))) {
      throw forbiddenBecause(name, `writeConstraint of ${source}`)
    }
  }
}

function holds(evaluate: () => readonly unknown[]): boolean {
  try {
    const result = evaluate()
    return result.length === 1 && result[0] === true
  } catch {
    return false
  }
}
