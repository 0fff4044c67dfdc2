/** Dead letters of a Project, for its administrators: `Bot/$dead-letters`, `Bot/$replay` and `Bot/$discard`. */

import { servicePrincipal } from '../../access/principal.ts'
import { badRequest, forbidden } from '../../core/errors.ts'
import { typeName } from '../../fhir/definitions.ts'
import { restEvent } from '../../request/admin-audit.ts'
import {
  type Inputs,
  type Output,
  parametersReply,
  readKnownInputs,
} from '../../request/parameters.ts'
import { absoluteUrl } from '../../request/reply.ts'
import type { FhirReply, InputTexts, Operation, OperationCall } from '../../request/request.ts'
import {
  DEAD_KINDS,
  type DeadCursor,
  type DeadFilter,
  type DeadLetter,
  discardDeadLetters,
  groupDeadLetters,
  listDeadLetters,
  replayDeadLetters,
} from '../../subscriptions/dead-letters.ts'
import { RUN_ID } from './run-query.ts'

const DEFAULT_COUNT = 20
const MOST_COUNT = 1000
const DEFAULT_RATE = 10
const MOST_RATE = 1000
const MAX_REASON = 500
const MOST_GROUPS = 100

const FILTER: InputTexts = {
  id: 'text: This letter alone',
  kind: 'text: delivery, schedule or run',
  target: 'text: Bot/id, or the host of a web hook',
  error: 'text: Part of the error, in any case',
  since: 'text: Failed at this date or time, or later',
  until: 'text: Failed in this period or before',
}

/** Lists deliveries, schedules and asynchronous runs whose attempts have ended. Errors: 400, 403. */
export const deadLetters: Operation = {
  name: 'dead-letters',
  on: [{ type: 'Bot', level: 'type' }],
  methods: ['GET'],
  inputs: {
    ...FILTER,
    _count: 'whole: Default 20, at most 1000',
    _cursor: 'text: From `next`',
    groups:
      'whole: Instead of letters, this many groups of the same kind, target and error (its first 200 characters), the largest first; at most 100',
  },
  text: {
    summary: 'List deliveries, schedules and asynchronous runs that have failed for good',
    description: 'Kept for 14 days. `$replay` repeats them, `$discard` removes them.',
    answer: 'Parameters',
  },
  area: 'administration',
  async run(call) {
    const project = requireProject(call)
    const inputs = readKnownInputs(call)
    if (inputs.whole('groups') !== undefined) return await listGroups(call, inputs)
    const count = wholeBetween(inputs, '_count', DEFAULT_COUNT, MOST_COUNT)
    const after = readCursor(inputs.text('_cursor'))
    const page = { after, count: count + 1 }
    const rows = await listDeadLetters(call.services.database, project, readFilter(inputs), page)
    const shown = rows.slice(0, count)
    const last = rows.length > count ? shown.at(-1) : undefined
    return parametersReply([
      ...shown.map((letter): Output => ['letter', 'part', toParts(letter)]),
      ['next', 'valueUrl', last && nextUrl(call, last)],
    ])
  },
}

async function listGroups(call: OperationCall, inputs: Inputs): Promise<FhirReply> {
  const most = wholeBetween(inputs, 'groups', MOST_GROUPS, MOST_GROUPS)
  for (const name of ['_count', '_cursor'] as const) {
    if (call.request.query.has(name)) throw badRequest(`groups has no pages: omit ${name}`, name)
  }
  const { database } = call.services
  const groups = await groupDeadLetters(database, requireProject(call), readFilter(inputs), most)
  return parametersReply(
    groups.map(({ kind, target, error, count, last }): Output => {
      const parts: readonly Output[] = [
        ['kind', 'valueCode', kind],
        targetPart(target),
        ['error', 'valueString', error],
        ['count', 'valueInteger', count],
        ['failed', 'valueInstant', last.toISOString()],
      ]
      return ['group', 'part', parts]
    }),
  )
}

export const REPLAY_INPUTS: InputTexts = {
  ...FILTER,
  rate: 'whole: Dead letters a second; default 10, at most 1000',
}

/** Repeats dead letters, at a rate. A run keeps its id and gets the current code of its bot. Errors: 400, 403. */
export async function replayLetters(call: OperationCall): Promise<FhirReply> {
  const project = requireProject(call)
  const inputs = readKnownInputs(call)
  const filter = readFilter(inputs)
  const rate = wholeBetween(inputs, 'rate', DEFAULT_RATE, MOST_RATE)
  return await changed(call, `Replay of dead letters ${describe(filter)}`, (connection) =>
    replayDeadLetters(connection, project, filter, rate),
  )
}

/** Removes dead letters for a reason, which an AuditEvent keeps. Errors: 400, 403. */
export const discard: Operation = {
  name: 'discard',
  on: [{ type: 'Bot', level: 'type' }],
  methods: ['POST'],
  inputs: { ...FILTER, reason: 'text!: Kept in an AuditEvent' },
  text: { summary: 'Remove dead letters', answer: 'Parameters' },
  area: 'administration',
  async run(call) {
    const project = requireProject(call)
    const inputs = readKnownInputs(call)
    const filter = readFilter(inputs)
    const reason = inputs.required('reason').trim()
    if (reason === '' || reason.length > MAX_REASON) {
      throw badRequest(`reason must have 1 to ${MAX_REASON} characters`, 'reason')
    }
    const what = `Discard of dead letters ${describe(filter)}: ${reason}`
    return await changed(call, what, (connection) =>
      discardDeadLetters(connection, project, filter),
    )
  },
}

type Connection = Parameters<typeof replayDeadLetters>[0]

/** Changes letters and records it in one transaction; returns the count. */
async function changed(
  { services, principal }: OperationCall,
  outcomeDesc: string,
  change: (connection: Connection) => Promise<number>,
): Promise<FhirReply> {
  const { profile, project } = principal
  const count = await services.repository.transaction(async (repository) => {
    const count = await repository.withConnection(change)
    const what = { reference: `Project/${project.id}` }
    await repository.create(servicePrincipal(project, { profile }), {
      ...restEvent(principal, project, 'operation', { what }),
      outcomeDesc: `${outcomeDesc} (${count})`,
    })
    return count
  })
  services.repository.withStore((store) => store.announce())
  return parametersReply([['count', 'valueInteger', count]])
}

function requireProject({ principal }: OperationCall) {
  if (!principal.isProjectAdmin && !principal.isSuperAdmin) throw forbidden()
  return principal.project
}

function readFilter(inputs: Inputs): DeadFilter {
  const id = inputs.text('id')
  const [, uuid] = RUN_ID.exec(id ?? '') ?? []
  if (id !== undefined && uuid === undefined)
    throw badRequest('id must be the id of a letter', 'id')
  const kind = inputs.text('kind')
  const known = DEAD_KINDS.find((one) => one === kind)
  if (kind !== undefined && known === undefined) {
    throw badRequest(`kind must be one of ${DEAD_KINDS.join(', ')}`, 'kind')
  }
  return {
    id: uuid?.toLowerCase(),
    kind: known,
    target: inputs.text('target'),
    error: inputs.text('error'),
    since: inputs.time('since', 'low'),
    until: inputs.time('until', 'high'),
  }
}

function describe(filter: DeadFilter): string {
  const given = Object.entries(filter).filter(([, value]) => value !== undefined)
  return given.length === 0 ? 'of the project' : JSON.stringify(Object.fromEntries(given))
}

function wholeBetween(inputs: Inputs, name: string, byDefault: number, most: number): number {
  const given = inputs.whole(name) ?? byDefault
  if (given >= 1 && given <= most) return given
  throw badRequest(`${name} must be a whole number from 1 to ${most}`, name)
}

function readCursor(text: string | undefined): DeadCursor | undefined {
  if (text === undefined) return undefined
  const [, ms, id = ''] = /^(\d{1,13})-([\da-f-]{36})$/.exec(text) ?? []
  if (ms === undefined || !RUN_ID.test(id)) throw badRequest('Invalid cursor', '_cursor')
  return { failed: new Date(Number(ms)), id }
}

function nextUrl({ services, request }: OperationCall, { failed, id }: DeadLetter): string {
  const query = new URLSearchParams(request.query)
  query.set('_cursor', `${failed.getTime()}-${id}`)
  return absoluteUrl(services, `Bot/$dead-letters?${query}`)
}

function toParts(letter: DeadLetter): readonly Output[] {
  const { id, kind, target, attempts, error, added, failed, due } = letter
  const { subscription, type, resource, version } = letter
  const focus = type === null ? undefined : `${typeName(type)}/${resource}/_history/${version}`
  const source = subscription ? { reference: `Subscription/${subscription}` } : undefined
  return [
    ['id', 'valueUuid', `urn:uuid:${id}`],
    ['kind', 'valueCode', kind],
    targetPart(target),
    ['subscription', 'valueReference', source],
    ['focus', 'valueReference', focus && { reference: focus }],
    ['attempts', 'valueInteger', attempts],
    ['error', 'valueString', error],
    ['added', 'valueInstant', added.toISOString()],
    ['failed', 'valueInstant', failed.toISOString()],
    ['replayAt', 'valueInstant', due?.toISOString()],
  ]
}

function targetPart(target: string): Output {
  const isBot = target.startsWith('Bot/')
  return isBot ? ['bot', 'valueReference', { reference: target }] : ['host', 'valueString', target]
}
