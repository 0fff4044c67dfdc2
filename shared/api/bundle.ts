/** Batch and transaction. https://hl7.org/fhir/R4/http.html#transaction */
import { conflict, HttpError } from '../errors.ts'
import { type ResponseEntry, responseBundle } from '../fhir/bundle.ts'
import { outcome } from '../fhir/outcome.ts'
import { undoable } from './binary-content.ts'
import { type BundleRequest, type Entry, entryPath, inSteps, readBundle } from './bundle-entries.ts'
import {
  type Identity,
  IdentityLost,
  identify,
  identitiesOf,
  requireDistinct,
} from './bundle-identities.ts'
import { failedEntry, type Respond, runEntry, type Step } from './bundle-run.ts'
import type { FhirReply } from './handle.ts'
import type { Interaction } from './interaction.ts'
import { readJson } from './negotiate.ts'
import { textReply } from './reply.ts'

/** Errors: 400 for the bundle as a whole; of a transaction, the failure of any entry. */
export async function bundle(interaction: Interaction, respond: Respond): Promise<FhirReply> {
  const request = readBundle(readJson(interaction.request))
  const responses =
    request.type === 'batch'
      ? await runBatch(interaction, request, respond)
      : await runTransaction(interaction, request, respond)
  return textReply(200, responseBundle({ type: `${request.type}-response`, links: [] }, responses))
}

/** Entries that do not write wait for nothing, so some of them run side by side. */
const CONCURRENT = 8

async function runBatch(
  interaction: Interaction,
  { entries }: BundleRequest,
  respond: Respond,
): Promise<ResponseEntry[]> {
  const responses: ResponseEntry[] = []
  const known = new Map<string, Identity>()
  const steps: { entry: Entry; identity: Identity | undefined }[] = []
  for (const [index, entry] of entries.entries()) {
    try {
      if (entry instanceof HttpError) throw entry
      steps.push({ entry, identity: await identify(interaction, entry, known) })
    } catch (error) {
      responses[index] = failedEntry(interaction, error)
    }
  }
  const identities = identitiesOf(steps)
  const identityOf = new Map(steps.map(({ entry, identity }) => [entry, identity]))
  for (const group of inSteps(steps.map(({ entry }) => entry))) {
    await inParallel(
      group,
      group[0]?.method === 'POST' || group[0]?.method === 'GET',
      async (entry) => {
        const step: Step = { entry, identity: identityOf.get(entry), identities }
        try {
          responses[entry.index] = await runEntry(interaction, step, respond)
        } catch (error) {
          responses[entry.index] = failedEntry(interaction, error)
        }
      },
    )
  }
  return responses
}

async function inParallel(
  entries: readonly Entry[],
  isIndependent: boolean,
  work: (entry: Entry) => Promise<void>,
): Promise<void> {
  let next = 0
  const lane = async () => {
    for (let entry = entries[next++]; entry !== undefined; entry = entries[next++]) {
      await work(entry)
    }
  }
  await Promise.all(Array.from({ length: isIndependent ? CONCURRENT : 1 }, lane))
}

const MAX_RETRIES = 3

/**
 * The store repeats what PostgreSQL could not serialise, this repeats what lost a race for an id;
 * every try begins with the bundle as it was sent, nothing of a rolled back one is kept.
 */
async function runTransaction(
  interaction: Interaction,
  request: BundleRequest,
  respond: Respond,
): Promise<ResponseEntry[]> {
  const { services, undo } = undoable(interaction.services)
  for (let retry = 0; ; retry++) {
    try {
      return await services.repository.transaction(async (repository) => {
        await undo()
        return await runAll(
          { ...interaction, services: { ...services, repository } },
          request,
          respond,
        )
      })
    } catch (error) {
      await undo()
      if (!(error instanceof IdentityLost)) throw error
      if (retry === MAX_RETRIES) throw conflict('Too many concurrent changes, try again')
    }
  }
}

async function runAll(
  interaction: Interaction,
  { entries }: BundleRequest,
  respond: Respond,
): Promise<ResponseEntry[]> {
  const responses: ResponseEntry[] = []
  const known = new Map<string, Identity>()
  const steps: { entry: Entry; identity: Identity | undefined }[] = []
  for (const [index, entry] of entries.entries()) {
    await atEntry(index, async () => {
      if (entry instanceof HttpError) throw entry
      steps.push({ entry, identity: await identify(interaction, entry, known) })
    })
  }
  requireDistinct(steps)
  const identities = identitiesOf(steps)
  const identityOf = new Map(steps.map(({ entry, identity }) => [entry, identity]))
  for (const entry of inSteps(steps.map(({ entry }) => entry)).flat()) {
    await atEntry(entry.index, async () => {
      const step: Step = { entry, identity: identityOf.get(entry), identities }
      responses[entry.index] = await runEntry(interaction, step, respond)
    })
  }
  return responses
}

/** A failure inside says at which entry of the bundle it happened. */
async function atEntry(index: number, work: () => Promise<void>): Promise<void> {
  try {
    await work()
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
    const issues = error.outcome.issue.map((item) => ({
      ...item,
      expression: [entryPath(index), ...(item.expression ?? [])].filter(isFirst),
    }))
    throw new HttpError(error.status, outcome(error.outcome.id, ...issues), {
      cause: error,
      headers: error.headers,
    })
  }
}

function isFirst(item: string, index: number, all: readonly string[]): boolean {
  return all.indexOf(item) === index
}
