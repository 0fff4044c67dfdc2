/** All pages: where each is, who sees it in the menu, and its file, which is loaded when it is opened. */
import { type ComponentType, lazy } from 'react'
import type { Me } from './session.ts'
import { texts } from './texts/texts.ts'

export type Group = keyof typeof texts.groups

export interface PageEntry {
  /** Below `/console`; wouter's form. */
  readonly path: string
  readonly Page: ComponentType
  /** Absent for pages that others lead to. */
  readonly menu?: {
    readonly label: string
    readonly group: Group | undefined
    readonly shows: (me: Me) => boolean
  }
}

const everybody = () => true

export const pages: readonly PageEntry[] = [
  {
    path: '/',
    Page: lazy(() => import('./pages/home/home.tsx').then(({ Home }) => ({ default: Home }))),
    menu: { label: texts.home.title, group: undefined, shows: everybody },
  },
  {
    path: '/graphiql',
    Page: lazy(() => import('./pages/graphiql/page.tsx').then(({ Page }) => ({ default: Page }))),
    menu: { label: texts.graphiql.title, group: 'tools', shows: everybody },
  },
]
