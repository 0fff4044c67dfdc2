/**
 * Decides on writes: before the write by the new index rows, or by PostgreSQL after it, which needs a transaction.
 * Write constraints are evaluated in memory.
 */
import { attempt, forbidden, forbiddenBecause } from '../../core/errors.ts'
import { typeName } from '../../fhir/definitions.ts'
import type { Resource } from '../../fhir/resource.ts'
import type { IndexRows } from '../../store/index/indexes.ts'
import type { StoreContext } from '../../store/rows/context.ts'
import { withoutSecrets } from '../fields/fields.ts'
import type { Grant } from '../grant.ts'
import { keepPaths } from '../paths.ts'
import { grantsFor } from '../policy.ts'
import type { Principal } from '../principal.ts'
import { decideByContent, hiddenBy, needsSql } from './decide.ts'
import { type AccessDecision, decideLiveRows } from './decide-in-sql.ts'
import { toIndexedRow } from './match-row.ts'

interface Prepared {
  readonly write: { readonly project: number; readonly type: number; readonly id: string }
  readonly resource: Resource
  readonly rows: () => IndexRows
}

type Writing = 'create' | 'update'

export function readonlyBy(decision: AccessDecision): readonly string[] {
  return decision === undefined || decision === 'all' ? [] : decision.readonly
}

/** Drops elements the caller may not set. `decision` undefined: decided after the write. Errors: 403. */
export function decideCreate<P extends Prepared>(
  store: StoreContext,
  principal: Principal,
  sent: Resource,
  prepare: (resource: Resource) => P,
): { readonly prepared: P; readonly decision: AccessDecision } {
  const type = sent.resourceType
  const grants = grantsFor(principal, type, 'create')
  if (grants === undefined) return { prepared: prepare(sent), decision: 'all' }
  if (needsSql(store, principal, type, 'create')) {
    requireTransaction(store)
    const left = keepPaths(sent, undefined, grants.flatMap(protectedPaths))
    return { prepared: prepare(left), decision: undefined }
  }
  const dropped: string[] = []
  let prepared = prepare(sent)
  // Each drop can change the governing grant.
  for (;;) {
    const decision = decideAfter(store, principal, 'create', prepared)
    if (decision === undefined) throw forbidden(after('create'))
    const more =
      decision === 'all' ? [] : protectedPaths(decision).filter((path) => !dropped.includes(path))
    if (more.length === 0) {
      check(decision, undefined, prepared)
      return { prepared, decision }
    }
    dropped.push(...more)
    prepared = prepare(keepPaths(sent, undefined, dropped))
  }
}

function protectedPaths({ hidden, readonly }: Grant): readonly string[] {
  return [...hidden, ...readonly]
}

/** Returns undefined when it is decided after the write. Errors: 403. */
export function decideUpdate(
  store: StoreContext,
  principal: Principal,
  prepared: Prepared,
  stored: Resource | undefined,
): AccessDecision {
  if (needsSql(store, principal, prepared.resource.resourceType, 'update')) {
    requireTransaction(store)
    return undefined
  }
  const decision = decideAfter(store, principal, 'update', prepared)
  if (decision === undefined) throw forbidden(after('update'))
  check(decision, stored, prepared)
  return decision
}

function requireTransaction({ deferred }: StoreContext): void {
  if (deferred === undefined) throw new Error('This policy is applied inside a transaction')
}

interface WrittenVersion {
  readonly prepared: Prepared
  readonly decided: AccessDecision
  readonly stored: Resource | undefined
}

/** Asks PostgreSQL if the decision is still open. Errors: 403, which must abort the transaction. */
export async function decideWritten(
  store: StoreContext,
  principal: Principal,
  interaction: Writing,
  { prepared, decided, stored }: WrittenVersion,
): Promise<AccessDecision> {
  if (decided !== undefined) return decided
  const { project, id, type } = prepared.write
  const question = { principal, type: typeName(type), project, asked: [interaction] }
  const [found] = await decideLiveRows(store, question, [id])
  const decision = found?.[interaction]
  if (decision === undefined) throw forbidden(after(interaction))
  check(decision, stored, prepared)
  return decision
}

/** All candidate paths when only PostgreSQL can decide. */
export function hiddenAfter(
  store: StoreContext,
  principal: Principal,
  prepared: Prepared,
): readonly string[] {
  const { resourceType: type } = prepared.resource
  if (needsSql(store, principal, type, 'read')) {
    return (grantsFor(principal, type, 'read') ?? []).flatMap(({ hidden }) => hidden)
  }
  return hiddenBy(decideAfter(store, principal, 'read', prepared))
}

function decideAfter(
  store: StoreContext,
  principal: Principal,
  interaction: Writing | 'read',
  { write, resource, rows }: Prepared,
): AccessDecision {
  return decideByContent(store, principal, {
    type: resource.resourceType,
    interaction,
    project: write.project,
    indexed: () => toIndexedRow(write.id, rows()),
  })
}

function check(
  decision: AccessDecision,
  before: Resource | undefined,
  { resource }: Prepared,
): void {
  if (decision === undefined || decision === 'all') return
  checkConstraints(decision, before, resource)
}

function after(interaction: Writing): string {
  return `criteria of every entry for ${interaction}, by what would be stored`
}

/** Requires exactly one `true`. Constraints see no secrets: members may write AccessPolicies too. Errors: 403. */
function checkConstraints(
  { constraints, source }: Pick<Grant, 'constraints' | 'source'>,
  stored: Resource | undefined,
  next: Resource,
): void {
  if (constraints.length === 0) return
  const before = stored === undefined ? [] : withoutSecrets(stored)
  const after = withoutSecrets(next)
  for (const { name, run, variables } of constraints) {
    const [result, ...more] = attempt(() => run(after, { ...variables, before, after })) ?? []
    if (result !== true || more.length > 0) {
      throw forbiddenBecause(name, `writeConstraint of ${source}`)
    }
  }
}
