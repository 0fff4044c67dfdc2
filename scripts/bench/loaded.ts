/** A web process whose one Project holds copies of Synthea's patients: where a bench of reads begins. */
import type { ChildProcess } from 'node:child_process'
import { type Principal, systemPrincipal } from '../../shared/access/principal.ts'
import { freePort } from '../service.ts'
import { startWeb, stopChild, untilReady } from './children.ts'
import { openProject } from './project.ts'
import { type Loaded, loadCopies } from './search-load.ts'
import { openStage, type Stage } from './stage.ts'

export interface LoadedStage {
  readonly stage: Stage
  readonly web: ChildProcess
  readonly baseUrl: string
  readonly projectId: string
  /** The access token of a client of the Project. */
  readonly token: string
  /** Sees all of the Project, and nothing else. */
  readonly principal: Principal
  readonly loaded: Loaded
}

/** Runs `work` on `resources` of them, and ends all that it started. */
export async function onLoadedStage<T>(
  resources: number,
  work: (ready: LoadedStage) => Promise<T>,
): Promise<T> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({ PORT: String(port), BASE_URL: baseUrl })
  const web = startWeb(stage.env)
  try {
    await untilReady(baseUrl, false)
    const { token, projectId } = await openProject(stage, baseUrl)
    const { repository, principals, database } = stage.services
    const project = await principals.project(projectId)
    if (!project) throw new Error('The bench project was not made')
    const principal = { ...systemPrincipal(project), isSuperAdmin: false }
    const began = performance.now()
    const loaded = await loadCopies(repository, principal, resources)
    const seconds = (performance.now() - began) / 1000
    await database.query({ text: 'vacuum analyze', values: [] })
    // Else what was loaded is written to disk while the bench runs.
    await database.query({ text: 'checkpoint', values: [] })
    console.log(`${loaded.count} resources, ${Math.round(loaded.count / seconds)}/s`)
    return await work({ stage, web, baseUrl, projectId, token, principal, loaded })
  } finally {
    await stopChild(web)
    await stage.close()
  }
}
