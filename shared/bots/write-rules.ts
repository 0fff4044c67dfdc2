/** Write rules of Bots and their code, and the write part of schedules. */
import { changesCode, hasAllRights, runsAsCaller } from '../access/guarded/rights.ts'
import { grantsFor, may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { badRequest, forbiddenByPlatform } from '../core/errors.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { Resource } from '../fhir/resource.ts'
import { checkBot } from '../fhir/schedule.ts'
import { type ProgramRights, requireRightsOver } from '../identity/write-rules.ts'
import { arrayLiteral, type Bind } from '../postgres/statement.ts'
import {
  isUuid,
  normalId,
  type StoreContext,
  type WriteAttempt,
  type WritePart,
  type WriteRule,
} from '../store/rows/context.ts'
import type { Listed } from '../store/rows/side-rows.ts'
import { checkGuarded, requireNoLimits } from '../store/write/authorize.ts'
import { checkPace } from './pace.ts'
import { BOT, scheduleChange } from './schedules.ts'

export function botRules(programRights: ProgramRights): readonly WriteRule[] {
  const rightsOver = (store: StoreContext, principal: Principal, id: string) =>
    requireRightsOver(programRights, store.connection, principal, `${BOT}/${id}`)
  const requireRightsOverBot = async (change: CodeChange) => {
    const { store, principal, id, isNew } = change
    if (hasAllRights(principal)) return
    requireAdministratorForElevatedBot(change)
    if (principal.project.hasSecrets) requireNamed(change, 'A Bot gets the secrets of its Project')
    const memberships = isNew ? 0 : await rightsOver(store, principal, id)
    if (memberships > 0) return
    requireNamed(change, 'A Bot without a membership runs with the rights of its caller')
  }
  return [
    {
      type: BOT,
      async check(attempt) {
        // The records of its runs are found by it.
        if (attempt.before === undefined && !isUuid(attempt.id)) {
          throw badRequest('The id of a Bot must be a UUID', `${BOT}.id`)
        }
        checkBot(attempt.kept)
        checkPace(attempt.kept)
        await requireRightsOverBot({ ...attempt, after: attempt.meant })
        checkGuarded(attempt)
      },
      async checkRemoval(store, principal, id) {
        await rightsOver(store, principal, normalId(id))
      },
    },
    {
      type: 'Binary',
      async check({ store, principal, id, isNew }) {
        if (!isNew) await checkContent(store, principal, id, requireRightsOverBot)
      },
      checkRemoval: (store, principal, id) =>
        checkContent(store, principal, normalId(id), requireRightsOverBot),
    },
  ]
}

interface CodeChange extends Omit<WriteAttempt, 'interaction' | 'sent' | 'kept' | 'meant'> {
  readonly after: Resource
}

/** A Bot that runs as its caller is for administrators, a system Bot for super administrators. Errors: 403. */
function requireAdministratorForElevatedBot({ principal, before, after }: CodeChange): void {
  if (runsAsCaller(before) || runsAsCaller(after)) {
    const reason = 'Only administrators may write a Bot that runs with the rights of its caller'
    throw forbiddenByPlatform(reason, 'Bot.runAsUser')
  }
  if (before?.system === true && !principal.isSuperAdmin) {
    throw forbiddenByPlatform('Only super administrators may write a system Bot', 'Bot.system')
  }
}

function requireNamed({ before, after, isNamed }: CodeChange, reason: string): void {
  if (isNamed || !changesCode(before, after)) return
  const who = 'its code is for project administrators, and for policies with an entry for Bot'
  throw forbiddenByPlatform(`${reason}: ${who}`, 'Bot.executableCode')
}

/** Guards the Binary of a Bot's code like the Bot. Errors: 403. */
async function checkContent(
  store: StoreContext,
  principal: Principal,
  id: string,
  requireRightsOverBot: (change: CodeChange) => Promise<void>,
): Promise<void> {
  if (hasAllRights(principal) && principal.declared === undefined) return
  const rows = await store.connection.query<{ content: string }>({
    name: 'bots-of-code',
    text: `select v.content from resource r join version v using (project, type, id, ver)
      where r.project = $1 and r.type = $2 and strpos(lower(v.content), $3) > 0`,
    values: [principal.project.number, typeNumber(BOT), `binary/${id.toLowerCase()}`],
  })
  for (const { content } of rows) {
    const after = JSON.parse(content) as Resource
    requireNoLimits(principal, BOT)
    if (!may(principal, BOT, 'update')) {
      throw forbiddenByPlatform(`Binary/${id} is the code of a Bot, which you may not write`)
    }
    const isNamed = grantsFor(principal, BOT, 'update')?.some((grant) => grant.isNamed) ?? false
    const none = { executableCode: undefined, code: undefined, sourceCode: undefined }
    const before = { ...after, ...none, extension: undefined }
    const change = { store, principal, before, after, id: after.id ?? '', isNew: false, isNamed }
    await requireRightsOverBot(change)
  }
}

/** True: the Bot has a schedule from now on; the write itself handles past occurrences. */
export const schedulePart: WritePart<boolean> = {
  types: new Set([BOT]),
  buildRow: ({ stored, resource }) => scheduleChange(stored, resource),
  sql(changes, bind) {
    const ns = (wanted: boolean) => numbers(changes, wanted, bind)
    const sql = [
      `hi as (insert into schedule (project, id)
      select w.project, w.id from w where w.n = any(${ns(true)}) order by w.project, w.id
      on conflict (project, id) do update set since = excluded.since, due = null)`,
      `hd as (delete from schedule s using w
      where w.n = any(${ns(false)}) and s.project = w.project and s.id = w.id)`,
    ]
    return { name: 'schedules', sql }
  },
  removal: {
    type: BOT,
    name: 'schedule',
    sql: [
      `b as (delete from schedule x using d
        where x.project = d.project and x.id = d.id and d.type = ${typeNumber(BOT)})`,
    ],
  },
}

function numbers(changes: readonly Listed<boolean>[], wanted: boolean, bind: Bind): string {
  const found = changes.filter(({ item }) => item === wanted).map(({ n }) => n)
  return bind(arrayLiteral(found), 'int[]')
}
