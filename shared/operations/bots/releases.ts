/** Versions and labels of a Bot: `Bot/:id/$releases`, `$promote` and `$rollback`. The rights are those of `$deploy`. */
import { type ProjectContext, servicePrincipal, systemPrincipal } from '../../access/principal.ts'
import { type BotHistory, codeUrl, intactCode, readHistory } from '../../bots/versions.ts'
import { badRequest, notFound, RaceLost } from '../../core/errors.ts'
import {
  botLabels,
  checkLabelName,
  codeAt,
  type LabelledCode,
  LIVE,
  withCode,
  withLabels,
} from '../../fhir/bot-labels.ts'
import type { Resource } from '../../fhir/resource.ts'
import { restEvent } from '../../request/admin-audit.ts'
import { type Output, parametersReply, readKnownInputs } from '../../request/parameters.ts'
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
  async run({ services, principal, id = '' }) {
    const [{ versions }, bot] = await Promise.all([
      readHistory(services, principal, id),
      services.repository.read(principal, 'Bot', id).then(parseVersion),
    ])
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
      throw badRequest(`The bot has no label and no version "${from.slice(0, 64)}"`, 'from')
    }
  }
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
