/** Revives dead runs whose replay is due, and mails Projects about new ones. Deliveries become due by themselves. */
import { systemPrincipal } from '../../shared/access/principal.ts'
import { system } from '../../shared/access/project-context.ts'
import { reopenAsyncJob } from '../../shared/bots/async-jobs.ts'
import {
  claimDeadNotices,
  claimDeadRun,
  type DueRun,
  refuseRevival,
  reviveOccurrence,
  revivePendingRun,
} from '../../shared/bots/dead-runs.ts'
import { timings } from '../../shared/core/config/waits.ts'
import { ignoreClientError } from '../../shared/core/errors.ts'
import { type Loop, startLoop } from '../../shared/jobs/loop.ts'
import { deadLetterAddresses } from '../../shared/outbound/project-mail.ts'
import { deadLetterMail } from '../../shared/projects/mail-texts.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Transaction } from '../../shared/store/repository.ts'
import { parseVersion } from '../../shared/store/rows/rows.ts'

const EVERY_MS = 500
const MAIL_EVERY_MS = 6 * timings.sweepMs

export function startDeadLetters(services: Services): readonly Loop[] {
  const { log } = services
  return [
    startLoop({ log, name: 'The replay of dead letters', everyMs: EVERY_MS }, () =>
      reviveNext(services),
    ),
    startLoop({ log, name: 'Mails about dead letters', everyMs: MAIL_EVERY_MS }, () =>
      mailAbout(services),
    ),
  ]
}

type Within = Omit<Services, 'repository'> & { readonly repository: Transaction }

/** One run is one transaction, so that it is revived once. */
async function reviveNext(services: Services): Promise<boolean> {
  const { repository, queues } = services
  const revived = await repository.transaction(async (inside) => {
    const run = await inside.withConnection(claimDeadRun)
    if (run === undefined) return undefined
    const within = { ...services, repository: inside }
    const job =
      run.job === undefined ? await reviveScheduled(within, run) : await revive(within, run)
    return { job }
  })
  if (revived?.job !== undefined) await queues.restore(revived.job)
  return revived !== undefined
}

async function reviveScheduled({ repository }: Within, run: DueRun): Promise<undefined> {
  await repository.withConnection(async (connection) => {
    if (await reviveOccurrence(connection, run)) return
    await refuseRevival(connection, run, 'The bot has no schedule any more')
  })
}

/** Returns the job with the current version of the Bot; undefined when it cannot run. */
async function revive(services: Within, run: DueRun): Promise<ExecuteJob | undefined> {
  const { repository, principals, queues } = services
  // Written by this service.
  const { lease: _, ...stored } = JSON.parse(run.job ?? '') as ExecuteJob
  const project = await principals.project(run.projectId)
  const botVersion = await currentVersion(services, stored)
  if (project === undefined || botVersion === undefined) {
    await repository.withConnection((connection) =>
      refuseRevival(connection, run, 'The bot is gone'),
    )
    return undefined
  }
  const added = Date.now()
  const deadline = added + stored.deadline - stored.added
  const job: ExecuteJob = { ...stored, botVersion, added, deadline, asynchronous: true }
  await repository.withConnection((connection) =>
    revivePendingRun(connection, { ...run, home: queues.home, job: JSON.stringify(job) }),
  )
  await reopenAsyncJob(services, project, job)
  return job
}

async function currentVersion(
  { repository, principals }: Services,
  { botId, botProjectId }: ExecuteJob,
): Promise<number | undefined> {
  const project = await principals.project(botProjectId)
  if (project === undefined) return undefined
  const bot = await repository.read(systemPrincipal(project), 'Bot', botId).catch(ignoreClientError)
  return bot?.ver
}

/** One mail per bot and day, to the addresses in the Project's setting. */
async function mailAbout({ repository, config }: Services): Promise<boolean> {
  await repository.transaction(async (inside) => {
    const notices = await inside.withConnection(claimDeadNotices)
    for (const notice of notices) {
      const found = await inside.read(system, 'Project', notice.projectId).catch(ignoreClientError)
      if (found === undefined) continue
      const project = parseVersion(found)
      const to = deadLetterAddresses(project)
      if (to.length === 0) continue
      const mail = deadLetterMail(config, to, { ...notice, projectName: String(project.name) })
      await inside.addMail(notice.projectId, mail)
    }
  })
  return false
}
