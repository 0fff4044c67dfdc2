/**
 * The one door for writes of guarded elements, of code that runs with rights, and of the audit trail, whatever
 * path they take. guarded/elements.ts lists the elements. The service's own work (no membership) is trusted.
 */
import { hiddenFields, keep } from '../../access/fields/fields.ts'
import {
  changesCode,
  foreignAgent,
  guardedChanges,
  hasAllRights,
  isGuarded,
  outranks,
  runsAsCaller,
} from '../../access/guarded/elements.ts'
import { grantsFor, may } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { SUBSCRIPTION } from '../../access/subscription.ts'
import { badRequest, refused } from '../../errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { Resource } from '../../fhir/resource.ts'
import { normalId, type Store } from '../rows/context.ts'
import { BOT } from '../rows/schedules.ts'
import type { Ruling } from '../rulings/rows.ts'

const AUDIT_EVENT = 'AuditEvent'
const CLIENT = 'ClientApplication'

/** A resource as it was sent, and as it would be written: what the caller may not set is as it is stored. */
export interface Sent {
  readonly sent: Resource
  readonly kept: Resource
}

/** Errors: 400, 403. `isNew`: its id was made for it, so that nothing can refer to it. */
export async function checkNew(
  store: Store,
  principal: Principal,
  next: Sent,
  id: string,
  isNew: boolean,
): Promise<void> {
  const { resourceType: type } = next.sent
  if (principal.membershipId === undefined || !isGuarded(type)) return
  if (type === AUDIT_EVENT) requireOwnName(principal, next.sent)
  const isNamed = grantsFor(principal, type, 'create')?.some((grant) => grant.isNamed) ?? false
  const after = asMeant(principal, next)
  await checkGuarded(store, principal, undefined, after, { id, isNamed, isNew })
}

/** A change of what is stored, or of what was; `ruling` is that of the update. Errors: 403. */
export async function checkStored(
  store: Store,
  principal: Principal,
  before: Resource | undefined,
  next: Sent,
  id: string,
  ruling: Ruling,
): Promise<void> {
  const { resourceType: type } = next.sent
  if (principal.membershipId === undefined || !isGuarded(type)) return
  requireNoAudit(type)
  const isNamed = ruling !== undefined && ruling !== 'all' && ruling.isNamed
  const after = asMeant(principal, next)
  await checkGuarded(store, principal, before, after, { id, isNamed, isNew: false })
}

/** A caller that sends an element which it does not see means to change it. */
function asMeant(principal: Principal, { sent, kept }: Sent): Resource {
  const names = hiddenFields(principal, sent.resourceType).filter((name) => name in sent)
  return keep(kept, sent, names)
}

/** Errors: 403. */
export async function checkRemoval(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  if (principal.membershipId === undefined || !isGuarded(type)) return
  requireNoAudit(type)
  const own = normalId(id)
  if (type === CLIENT || type === BOT) await rightsWithin(store, principal, `${type}/${own}`)
  if (type === 'Binary') await checkCode(store, principal, own)
}

interface Guarded {
  readonly id: string
  /** An entry of a policy that names the type governs the write. */
  readonly isNamed: boolean
  readonly isNew: boolean
}

async function checkGuarded(
  store: Store,
  principal: Principal,
  before: Resource | undefined,
  after: Resource,
  { id, isNamed, isNew }: Guarded,
): Promise<void> {
  const { resourceType: type } = after
  if (type === 'Binary' && !isNew) return checkCode(store, principal, id)
  if (type === BOT) await checkBot(store, principal, before, after, { id, isNamed, isNew })
  const changes = guardedChanges(before, after)
  const [path] = changes
  if (path !== undefined) requireName(principal, before, type, path, isNamed)
  if (changes.includes('identityProvider')) requireProviderRight(principal, type)
  if (type === CLIENT && path !== undefined && !isNew) {
    await rightsWithin(store, principal, `${type}/${id}`)
  }
}

/** A provider speaks for every member, so its author lacks no right. Errors: 403. */
export function requireProviderRight(principal: Principal, type: string): void {
  if (hasAllRights(principal)) return
  const reason = 'An identity provider is set up by administrators alone'
  throw refused(reason, `${type}.identityProvider`)
}

/** Errors: 403. The author of a Subscription may change its secrets. */
function requireName(
  principal: Principal,
  before: Resource | undefined,
  type: string,
  path: string,
  isNamed: boolean,
): void {
  if (principal.isProjectAdmin || isNamed) return
  const author = before?.meta?.author?.reference
  const isOwn = before === undefined || author === principal.profile
  if (type === SUBSCRIPTION && isOwn) return
  const reason = `is for project administrators, and for policies with an entry for ${type}`
  throw refused(`${type}.${path} ${reason}`, `${type}.${path}`)
}

/** Errors: 403 for code that would run with more rights than the writer has. */
async function checkBot(
  store: Store,
  principal: Principal,
  before: Resource | undefined,
  after: Resource,
  { id, isNamed, isNew }: Guarded,
): Promise<void> {
  if (hasAllRights(principal)) return
  if (runsAsCaller(before) || runsAsCaller(after)) {
    const reason =
      'A Bot that runs with the rights of its caller is written by administrators alone'
    throw refused(reason, 'Bot.runAsUser')
  }
  if (before?.system === true && !principal.isSuperAdmin) {
    throw refused('A Bot of the system is written by administrators alone', 'Bot.system')
  }
  const memberships = isNew ? 0 : await rightsWithin(store, principal, `${BOT}/${id}`)
  if (memberships > 0 || isNamed || !changesCode(before, after)) return
  throw refused(
    'A Bot without a membership runs with the rights of its caller: its code is for project administrators, and for policies with an entry for Bot',
    'Bot.executableCode',
  )
}

/** How many memberships a program has. Errors: 403 when one of them has more rights than the writer. */
async function rightsWithin(store: Store, principal: Principal, program: string): Promise<number> {
  if (hasAllRights(principal)) return 0
  const rights = await store.programRights(store.connection, program)
  if (rights.some((found) => found === undefined || outranks(found, principal))) {
    throw refused(`The membership of ${program} has more rights than yours`)
  }
  return rights.length
}

/** The Binary that a Bot of the Project names as its code is guarded like the Bot. Errors: 403. */
async function checkCode(store: Store, principal: Principal, id: string): Promise<void> {
  if (hasAllRights(principal)) return
  const rows = await store.connection.query<{ content: string }>({
    name: 'bots-of-code',
    text: `select v.content from resource r join version v using (project, type, id, ver)
      where r.project = $1 and r.type = $2 and strpos(lower(v.content), $3) > 0`,
    values: [principal.project.number, typeNumber(BOT), `binary/${id.toLowerCase()}`],
  })
  for (const { content } of rows) {
    // Content is written by the store alone and is a resource.
    const bot = JSON.parse(content) as Resource
    if (!may(principal, BOT, 'update')) {
      throw refused(`Binary/${id} is the code of a Bot, which you may not write`)
    }
    const named = grantsFor(principal, BOT, 'update')?.some((grant) => grant.isNamed) ?? false
    const emptied = { ...bot, executableCode: undefined, code: undefined }
    await checkBot(store, principal, emptied, bot, {
      id: bot.id ?? '',
      isNamed: named,
      isNew: false,
    })
  }
}

/** Errors: 403 for every change of an AuditEvent. Only super admins remove them for good, by `$expunge`. */
function requireNoAudit(type: string): void {
  if (type === AUDIT_EVENT) throw refused('An AuditEvent is never changed')
}

/** Errors: 403, and 400 where nobody is named. Super admins bring events from elsewhere. */
function requireOwnName(principal: Principal, event: Resource): void {
  if (principal.isSuperAdmin) return
  const foreign = foreignAgent(principal, event)
  if (foreign === undefined) return
  const reason = `An AuditEvent names the caller, ${principal.profile}, as its agent`
  throw foreign.isMissing ? badRequest(reason, foreign.path) : refused(reason, foreign.path)
}
