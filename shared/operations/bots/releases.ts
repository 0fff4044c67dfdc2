/**
 * Versions and labels of a Bot: `Bot/:id/$releases`, `$promote`, `$rollback` and `$diff`. Changes need the rights of
 * `$deploy`.
 */
import { createTwoFilesPatch, FILE_HEADERS_ONLY } from 'diff'
import { type ProjectContext, servicePrincipal, systemPrincipal } from '../../access/principal.ts'
import { codeLocation, MAX_CODE_BYTES } from '../../bots/bot.ts'
import { type BotHistory, codeUrl, intactCode, readHistory } from '../../bots/versions.ts'
import { badRequest, type HttpError, notFound, RaceLost, tooCostly } from '../../core/errors.ts'
import {
  botLabels,
  type Code,
  checkLabelName,
  codeAt,
  type LabelledCode,
  LIVE,
  withCode,
  withLabels,
} from '../../fhir/bot-labels.ts'
import type { Resource } from '../../fhir/resource.ts'
import { restEvent } from '../../request/admin-audit.ts'
import { readBinaryContent, readWhole } from '../../request/binary/content.ts'
import {
  type Output,
  parametersReply,
  readInputs,
  readKnownInputs,
} from '../../request/parameters.ts'
import type { FhirReply, Operation, OperationCall } from '../../request/request.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import { platformMeta } from '../../store/rows/version.ts'

const STAGING = 'staging'
const BOT = [{ type: 'Bot', level: 'instance' }] as const

/** Lists the versions of a Bot's code with their labels. Errors: 403 and 404 as for its history. */
export const releases: Operation = {
  name: 'releases',
  on: BOT,
  methods: ['GET'],
  text: {
    summary: 'List the versions of the code of a bot, and their labels',
    description: 'The latest first, from the last 2,000 versions of the Bot.',
    answer: 'Parameters',
  },
  onlyReads: true,
  async run(call) {
    const [{ versions }, bot] = await readVersions(call)
    const labels = [{ name: LIVE, share: 0, code: bot.executableCode }, ...botLabels(bot)]
    const listed = versions.map((version): Output => {
      const own = labels.filter(({ code }) => codeUrl(code) === codeUrl(version.code))
      const { author } = version
      const parts: readonly Output[] = [
        ['version', 'valueString', version.name],
        ['deployed', 'valueInstant', version.deployed.toISOString()],
        ['by', 'valueReference', author === undefined ? undefined : { reference: author }],
        ['file', 'valueString', version.code.title],
        ['code', 'valueReference', { reference: codeUrl(version.code) }],
        ...own.flatMap(({ name, share }): readonly Output[] => [
          ['label', 'valueString', name],
          ['share', 'valueInteger', share || undefined],
        ]),
      ]
      return ['release', 'part', parts]
    })
    return parametersReply(listed)
  },
}

function readVersions({ services, principal, id = '' }: OperationCall) {
  const bot = services.repository.read(principal, 'Bot', id).then(parseVersion)
  return Promise.all([readHistory(services, principal, id), bot])
}

/** Points a label to a version, or sends a share of the calls to a label. Errors: 400, 403 and 404 as `$deploy`. */
export const promote: Operation = {
  name: 'promote',
  on: BOT,
  methods: ['POST'],
  inputs: {
    from: 'text: A label or a version; default: staging',
    to: 'text: A label, which is made if it is not there; default: live',
    share: 'whole: 0 to 100',
  },
  text: {
    summary: 'Move a label of a bot to another version',
    description:
      'By default, the code of `staging` becomes the live code. With `share`, the live code stays, and this percentage of the calls without a label runs the code of `from`; 0 ends that.',
    answer: 'Parameters',
  },
  async run(call) {
    const inputs = readKnownInputs(call)
    const from = inputs.text('from') ?? STAGING
    const to = inputs.text('to') ?? LIVE
    const share = inputs.whole('share')
    checkLabelName(to, 'to')
    if (from === to) throw badRequest('from and to must differ', 'to')
    if (share === undefined) return await changed(call, to, moveLabel(call, from, to))
    if (to !== LIVE)
      throw badRequest('share is of the live calls, so that to must be live', 'share')
    return await changed(call, from, (latest) => withShare(latest, from, share))
  },
}

/** Returns the live label to an earlier version. Errors: 400 without one, 403 and 404 as `$deploy`, 409. */
export const rollback: Operation = {
  name: 'rollback',
  on: BOT,
  methods: ['POST'],
  inputs: { version: 'text: Default: the version before' },
  text: {
    summary: 'Return the live code of a bot to the version before',
    description:
      'Labels that have a share of the calls lose it, and the live code stays. Otherwise the live code becomes that of the given version, or of the one that was live before it first was.',
    answer: 'Parameters',
  },
  async run(call) {
    const version = readKnownInputs(call).text('version')
    return await changed(call, LIVE, async (latest, past) => {
      const labels = botLabels(latest)
      if (version !== undefined) return await moveLabel(call, version, LIVE)(latest, past)
      if (labels.some(({ share }) => share > 0)) {
        return withLabels(latest, labels.map(withoutShare))
      }
      const { live, previous, project } = past
      if (codeAt(latest, LIVE)?.code.url !== live) {
        throw new RaceLost('The live version has changed meanwhile: try again')
      }
      if (previous === undefined) throw badRequest('The bot has no version before this one')
      return withCode(latest, LIVE, await intactCode(call.services, project, previous))
    })
  },
}

interface Past extends BotHistory {
  readonly project: ProjectContext
}

type Change = (latest: Resource, past: Past) => Resource | Promise<Resource>

/** Changes the Bot and records it in one transaction; returns the label's version before and after. */
async function changed(
  { services, principal, id = '', operation }: OperationCall,
  label: string,
  change: Change,
): Promise<FhirReply> {
  const { repository, principals } = services
  const current = await repository.read(principal, 'Bot', id)
  const project = await principals.project(platformMeta(current).project ?? '')
  if (project === undefined) throw notFound()
  const past = { ...(await readHistory(services, systemPrincipal(project), id)), project }
  const findName = (code: LabelledCode | undefined) =>
    past.versions.find((one) => codeUrl(one.code) === codeUrl(code?.code))?.name
  const outputs = await repository.transaction(async (inside) => {
    let before: Resource | undefined
    const written = await inside.patch(principal, { type: 'Bot', id }, (latest) => {
      before = latest
      return change(latest, past)
    })
    const after = parseVersion(written)
    const share = botLabels(after).find(({ name }) => name === label)?.share
    const found: readonly Output[] = [
      ['label', 'valueString', label],
      ['version', 'valueString', findName(codeAt(after, label))],
      ['previous', 'valueString', before && findName(codeAt(before, label))],
      ['share', 'valueInteger', share || undefined],
    ]
    const detail = found.flatMap(([type, , value]) =>
      value === undefined ? [] : [{ type, valueString: String(value) }],
    )
    const entity = { what: { reference: `Bot/${id}` }, name: `$${operation.name}`, detail }
    const { profile } = principal
    await inside.create(
      servicePrincipal(project, { profile }),
      restEvent(principal, project, 'operation', entity),
    )
    return found
  })
  return parametersReply(outputs)
}

/** Labels with the code that becomes live have no share any more. */
function moveLabel({ services }: OperationCall, from: string, to: string): Change {
  return async (latest, { versions, project }) => {
    const code = codeAt(latest, from) ?? (await findVersion())
    const moved = withCode(latest, to, code)
    if (to !== LIVE) return moved
    const labels = botLabels(moved)
    return withLabels(
      moved,
      labels.map((label) =>
        codeUrl(label.code) === codeUrl(code.code) ? withoutShare(label) : label,
      ),
    )

    async function findVersion(): Promise<LabelledCode> {
      const found = versions.find(({ name }) => name === from)
      if (found !== undefined) return await intactCode(services, project, found)
      throw unknownVersion(from, 'from')
    }
  }
}

function unknownVersion(name: string, input: string): HttpError {
  return badRequest(`The bot has no label and no version "${name.slice(0, 64)}"`, input)
}

function withShare(bot: Resource, name: string, share: number): Resource {
  const labels = botLabels(bot)
  if (!labels.some((label) => label.name === name)) {
    throw badRequest(`The bot has no label "${name.slice(0, 64)}"`, 'from')
  }
  return withLabels(
    bot,
    labels.map((label) => (label.name === name ? { ...label, share } : label)),
  )
}

function withoutShare<Label extends { readonly share: number }>(label: Label): Label {
  return { ...label, share: 0 }
}

// `$diff`

/** The comparison blocks the process. */
const LONGEST_MS = 200
/** Lines added and removed that the comparison looks for. */
const MOST_CHANGES = 10_000
const MAX_CHARACTERS = 1024 * 1024

/** Compares sources, otherwise the code that runs. Errors: 400, 403 and 404 as for the history and the Binaries. */
export const diff: Operation = {
  name: 'diff',
  on: BOT,
  methods: ['GET', 'POST'],
  inputs: {
    from: 'text: A label or a version; default: live',
    to: 'text: A label or a version; default: staging',
  },
  text: {
    summary: 'Compare two versions of the code of a bot',
    description: 'A unified diff of the sources, or of the code that runs if one has no source.',
    answer: 'Parameters',
  },
  onlyReads: true,
  async run(call) {
    const inputs = readInputs(call)
    const [history, bot] = await readVersions(call)
    const from = findCode(bot, history, inputs.text('from') ?? LIVE, 'from')
    const to = findCode(bot, history, inputs.text('to') ?? STAGING, 'to')
    const [before, after] = await readTexts(call, from, to)
    const [title, newTitle] = [from, to].map(({ code }) => String(code.title ?? 'index.js'))
    const text = createTwoFilesPatch(
      title ?? '',
      newTitle ?? '',
      before,
      after,
      from.version,
      to.version,
      { timeout: LONGEST_MS, maxEditLength: MOST_CHANGES, headerOptions: FILE_HEADERS_ONLY },
    )
    if (text === undefined || text.length > MAX_CHARACTERS) {
      throw tooCostly('The versions differ in too many lines to compare them')
    }
    return parametersReply([
      ['from', 'valueString', from.version],
      ['to', 'valueString', to.version],
      ['diff', 'valueString', before === after ? undefined : text],
    ])
  },
}

interface Compared extends LabelledCode {
  /** The label or version that was asked for, and the version of a label in brackets. */
  readonly version: string
}

function findCode(bot: Resource, { versions }: BotHistory, name: string, input: string): Compared {
  const labelled = codeAt(bot, name)
  const found = versions.find((one) =>
    labelled === undefined ? one.name === name : codeUrl(one.code) === codeUrl(labelled.code),
  )
  if (labelled !== undefined) {
    return { ...labelled, version: found === undefined ? name : `${name} (${found.name})` }
  }
  if (found !== undefined) return { ...found, version: name }
  throw unknownVersion(name, input)
}

async function readTexts(
  call: OperationCall,
  from: LabelledCode,
  to: LabelledCode,
): Promise<readonly [string, string]> {
  const [before, after] =
    from.source === undefined || to.source === undefined
      ? [from.code, to.code]
      : [from.source, to.source]
  return await Promise.all([readText(call, before), readText(call, after)])
}

async function readText({ services, principal }: OperationCall, code: Code): Promise<string> {
  const { config, repository } = services
  const location = codeLocation({ resourceType: 'Bot', executableCode: code }, config.baseUrl)
  if (!location || location === 'inline') throw badRequest('The code is not a Binary')
  const content = readBinaryContent(await repository.read(principal, 'Binary', location.binary))
  return (await readWhole(services, content, MAX_CODE_BYTES)).toString()
}
